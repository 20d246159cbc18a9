"""Tasks of the release before."""

from __future__ import annotations

from celery import shared_task

from devtools.drilled.reporting import reporting
from devtools.drilled.settings import DRILL
from tasks.task import LedgerTask


@shared_task(base=LedgerTask, queue=DRILL.name, api=True)
def leaving(number: int) -> None:
    with reporting() as report:
        report.effect()


@shared_task(base=LedgerTask, queue=DRILL.name, api=True, name="devtools.drilled.changed")
def changed(number: int) -> None:
    with reporting() as report:
        report.effect()
