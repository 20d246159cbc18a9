"""Jobs that one release accepts and the next one runs. Workers load it with ``-I``."""

from __future__ import annotations

from celery import shared_task

from tasks.task import LedgerTask


@shared_task(base=LedgerTask, name="released.count", key="released:{number}")
def count(number: int) -> int:
    return number
