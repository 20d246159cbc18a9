"""Ledger tasks for tests; workers load them with ``-I tests.ledger_tasks``.

They leave their traces in the table ``trace``: what really ran, whatever the ledger says.
"""

from __future__ import annotations

import os
import signal
import time
from decimal import Decimal
from uuid import UUID

from celery import shared_task
from django.db import connection

from tasks.errors import Fail, RetryAfter, Snooze
from tasks.run import current_run
from tasks.task import LedgerTask


def leave_trace(note: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO trace (note, backend) VALUES (%s, pg_backend_pid())", [note])


@shared_task(base=LedgerTask, name="t.trace")
def trace(note: str) -> str:
    leave_trace(note)
    return note


@shared_task(base=LedgerTask, name="t.keyed", key="keyed:{order_id}", api=True)
def keyed(order_id: int, amount: Decimal = Decimal(1), label: str = "") -> str:
    leave_trace(f"keyed {order_id}")
    return str(amount)


@shared_task(base=LedgerTask, name="t.one_at_a_time", key="one:{name}", unique="unfinished")
def one_at_a_time(name: str) -> None:
    leave_trace(name)


@shared_task(base=LedgerTask, name="t.windowed", dedupe_window=2)
def windowed(name: str) -> None:
    leave_trace(name)


@shared_task(base=LedgerTask, name="t.typed")
def typed(order: UUID, price: Decimal) -> list[str]:
    return [type(order).__name__, type(price).__name__]


@shared_task(base=LedgerTask, name="t.slow")
def slow(note: str, seconds: float) -> None:
    leave_trace(f"{note} begins")
    time.sleep(seconds)
    leave_trace(f"{note} ends")


@shared_task(
    base=LedgerTask, name="t.flaky", autoretry_for=(ConnectionError,), retry_backoff=1,
    retry_backoff_max=1, max_retries=2,
)  # fmt: skip
def flaky(note: str, failures: int) -> int:
    leave_trace(note)
    if current_run().attempt <= failures:
        raise ConnectionError(f"failure {current_run().attempt}")
    return current_run().attempt


@shared_task(base=LedgerTask, name="t.breaks", autoretry_for=(ConnectionError,))
def breaks(note: str) -> None:
    raise ValueError(f"no retry helps {note}")


@shared_task(base=LedgerTask, name="t.refuses", max_retries=5, autoretry_for=(Exception,))
def refuses(dead_letter: bool) -> None:
    raise Fail("not possible", dead_letter=dead_letter)


@shared_task(base=LedgerTask, name="t.told_when", max_retries=1)
def told_when(seconds: float) -> str:
    if current_run().attempt == 1:
        raise RetryAfter(seconds)
    return "second"


@shared_task(base=LedgerTask, name="t.snoozes")
def snoozes(note: str, seconds: float) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM trace WHERE note = %s", [note])
        seen = cursor.fetchone()[0]
    leave_trace(note)
    if not seen:
        raise Snooze(seconds)


@shared_task(base=LedgerTask, name="t.snoozes_for_ever")
def snoozes_for_ever() -> None:
    raise Snooze(60)


@shared_task(base=LedgerTask, name="t.returns")
def returns(what: str) -> object:
    values = {"nan": float("nan"), "nul": "x\x00y", "object": object(), "fine": {"b": 1, "a": 2}}
    return values[what]


@shared_task(base=LedgerTask, name="t.tells_its_lease")
def tells_its_lease() -> float:
    return current_run().claim.lease_s


@shared_task(base=LedgerTask, name="t.limited", queue="limited")
def limited(note: str) -> None:
    leave_trace(note)


@shared_task(base=LedgerTask, name="t.quick", time_limit=7, soft_time_limit=5)
def quick(note: str) -> None:
    leave_trace(note)


@shared_task(base=LedgerTask, name="t.too_long", time_limit=1)
def too_long(note: str) -> None:
    leave_trace(note)
    time.sleep(30)


@shared_task(base=LedgerTask, name="t.kills_its_process")
def kills_its_process(note: str) -> None:
    leave_trace(note)
    os.kill(os.getpid(), signal.SIGKILL)


@shared_task(base=LedgerTask, name="t.quick_rate", rate_limit="1000/s")
def quick_rate(note: str) -> None: ...
