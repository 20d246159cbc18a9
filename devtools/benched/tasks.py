"""The same tasks on the ledger; found by Celery's own autodiscovery, as any app's are."""

from __future__ import annotations

import asyncio

from celery import shared_task

from devtools.benched import counting
from devtools.benched.settings import ASYNC_QUEUE, BATCHED_QUEUE, QUEUE
from tasks.task import LedgerTask


@shared_task(base=LedgerTask, queue=QUEUE, api=True)
def noop() -> None:
    counting.count()


@shared_task(base=LedgerTask, queue=BATCHED_QUEUE)
def batched() -> None:
    counting.count()


@shared_task(base=LedgerTask, queue=QUEUE)
def stamped(sent_at: float) -> None:
    counting.record_pickup(sent_at)


@shared_task(base=LedgerTask, queue=QUEUE)
def held() -> None:
    """Runs until it is let go."""
    counting.record_start()
    counting.wait_for_release()


@shared_task(base=LedgerTask, queue=ASYNC_QUEUE)
async def short() -> None:
    counting.count()


@shared_task(base=LedgerTask, queue=ASYNC_QUEUE)
async def waits(seconds: float) -> None:
    await asyncio.sleep(seconds)
    counting.count()
