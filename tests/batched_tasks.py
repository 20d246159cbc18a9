"""Tasks whose jobs travel together in tests; workers load them with ``-I``."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

from asgiref.sync import sync_to_async
from celery import shared_task, signals

from tasks.errors import Fail, RetryAfter, Snooze
from tasks.run import current_run
from tasks.task import LedgerTask
from tests.ledger_tasks import leave_trace


@shared_task(base=LedgerTask, name="b.play")
def play(note: str, how: str = "", seconds: float = 0.0) -> str:
    """Begins, does what it is told, ends."""
    leave_trace(f"{note} begins")
    time.sleep(seconds)
    if how == "fail":
        raise Fail(note)
    if how == "retry" and current_run().attempt == 1:
        raise RetryAfter(3600)
    if how == "snooze":
        raise Snooze(3600)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "large":
        return note * 20_000
    leave_trace(f"{note} ends")
    return note


@shared_task(base=LedgerTask, name="b.limited", time_limit=2)
def limited(note: str, seconds: float = 0.0) -> None:
    leave_trace(f"{note} begins")
    time.sleep(seconds)


@shared_task(base=LedgerTask, name="b.pausing", queue="limited")
def pausing(note: str, pauses: bool = False) -> None:
    leave_trace(note)
    if pauses:
        current_run().pause_downstream(3600, "it said so")


@shared_task(base=LedgerTask, name="b.waits", queue="webhooks")
async def waits(note: str, seconds: float) -> str:
    await sync_to_async(leave_trace)(f"{note} begins")
    await asyncio.sleep(seconds)
    await sync_to_async(leave_trace)(f"{note} ends")
    return str(current_run().job_id)


@shared_task(base=LedgerTask, name="b.waits_for", queue="webhooks")
async def waits_for(note: str, path: str = "") -> None:
    """Until there is such a file."""
    await sync_to_async(leave_trace)(f"{note} begins")
    while path and not Path(path).exists():
        await asyncio.sleep(0.05)


@shared_task(base=LedgerTask, name="b.holds")
def holds(note: str, path: str) -> None:
    """The same in a process of its own, which it names."""
    leave_trace(f"{note} begins")
    leave_trace(f"pid of {note}: {os.getpid()}")
    while not Path(path).exists():
        time.sleep(0.05)


@signals.task_success.connect
def say_success(sender: LedgerTask, **_: object) -> None:
    if sender.name == "b.play" and "signal" in (sender.request.kwargs or {}).get("note", ""):
        leave_trace(f"success of {sender.request.id}")
