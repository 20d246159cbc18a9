"""``async def`` tasks that mostly wait; workers load them with ``-I``."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import structlog
from celery import current_task, shared_task, signals
from celery.exceptions import SoftTimeLimitExceeded

from tasks.run import current_run
from tasks.task import LedgerTask


@shared_task(base=LedgerTask, queue="webhooks", name="w.call")
async def call(port: int, path: str) -> str:
    """Ask the slow downstream of the test."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"{path}\n".encode())
        return (await reader.readline()).decode().strip()
    finally:
        writer.close()


@shared_task(base=LedgerTask, queue="webhooks", name="w.sleep")
async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


@shared_task(base=LedgerTask, queue="webhooks", name="w.stubborn", time_limit=2)
async def stubborn() -> None:
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            continue


@shared_task(base=LedgerTask, queue="webhooks", name="w.limited", time_limit=2, max_retries=3)
async def limited() -> None:
    await asyncio.sleep(60)


@shared_task(
    base=LedgerTask, queue="webhooks", name="w.retried", time_limit=2, autoretry_for=(Exception,)
)
async def never_retried() -> None:
    await asyncio.sleep(60)


@shared_task(
    base=LedgerTask,
    queue="webhooks",
    name="w.soft",
    soft_time_limit=1,
    throws=(SoftTimeLimitExceeded,),
)
async def softly_limited() -> None:
    await asyncio.sleep(60)


@shared_task(base=LedgerTask, queue="webhooks", name="w.exits")
async def exits() -> None:
    raise SystemExit(3)


@shared_task(
    base=LedgerTask, bind=True, queue="webhooks", name="w.flaky",
    autoretry_for=(ConnectionError,), retry_backoff=False, default_retry_delay=0, max_retries=2,
)  # fmt: skip
async def flaky(self: Any) -> int:
    await asyncio.sleep(0)
    if self.request.retries < 2:
        raise ConnectionError("not yet")
    return int(self.request.retries)


@shared_task(base=LedgerTask, bind=True, queue="webhooks", name="w.who")
async def who_am_i(self: Any, number: int) -> list[Any]:
    """Asked before and after others have had their turn."""
    seen = []
    for _ in range(3):
        seen += [
            self.request.id,
            current_task.request.id,
            str(current_run().job_id),
            structlog.contextvars.get_contextvars().get("job_id"),
            self.request.kwargs["number"] == number,
        ]
        await asyncio.sleep(0.05)
    return seen


@shared_task(base=LedgerTask, queue="webhooks", name="w.signalled")
async def signalled(fails: bool) -> None:
    await asyncio.sleep(0.2)
    if fails:
        raise ValueError("as told")


SIGNALS: defaultdict[str, list[str]] = defaultdict(list)


def note(name: str, sender: Any, told_id: str | None) -> None:
    """Under the id that Celery told, or that of the request where it tells none."""
    if sender.name == "w.signalled":
        own_id = str(sender.request.id)
        SIGNALS[told_id or own_id].append(name if told_id in (None, own_id) else "of another")


@signals.task_prerun.connect
def on_prerun(sender: Any, task_id: str, **_: Any) -> None:
    note("prerun", sender, task_id)


@signals.task_success.connect
def on_success(sender: Any, **_: Any) -> None:
    note("success", sender, None)


@signals.task_failure.connect
def on_failure(sender: Any, task_id: str, **_: Any) -> None:
    note("failure", sender, task_id)


@signals.task_postrun.connect
def on_postrun(sender: Any, task_id: str, **_: Any) -> None:
    note("postrun", sender, task_id)
    if sender.name == "w.signalled":
        print(f"signals {task_id} {' '.join(SIGNALS[task_id])}.", flush=True)  # noqa: T201
