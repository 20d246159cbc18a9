"""One task, and the one line that changes when it moves over."""

from __future__ import annotations

import os
import time

from celery import Task, shared_task

from devtools.drilled.reporting import reporting
from devtools.drilled.settings import DRILL
from tasks.task import LedgerTask

BASE = LedgerTask if os.environ.get("ESTATE") == "ledger" else Task


@shared_task(base=BASE, queue=DRILL.name)
def capture(number: int = 0, seconds: float = 0.0) -> None:
    """With defaults: a message without arguments would run, and nobody would notice."""
    with reporting() as report:
        time.sleep(seconds)
        report.effect()
