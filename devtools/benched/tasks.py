"""The same tasks on the ledger; found by Celery's own autodiscovery, as any app's are."""

from __future__ import annotations

from celery import shared_task

from devtools.benched import counting
from devtools.benched.settings import BATCHED_QUEUE, QUEUE
from tasks.task import LedgerTask


@shared_task(base=LedgerTask, queue=QUEUE)
def noop() -> None:
    counting.count()


@shared_task(base=LedgerTask, queue=BATCHED_QUEUE)
def batched() -> None:
    counting.count()


@shared_task(base=LedgerTask, queue=QUEUE)
def stamped(sent_at: float) -> None:
    counting.record_pickup(sent_at)
