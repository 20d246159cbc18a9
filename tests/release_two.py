"""The tasks of the release after ``tests.release_one``: one has a new parameter, one is new."""

from __future__ import annotations

from celery import shared_task

from tasks.task import LedgerTask
from tests.surviving_tasks import leave_trace


@shared_task(base=LedgerTask, name="v.greet")
def greet(name: str, title: str = "") -> None:
    leave_trace(f"two greets {title} {name}")


@shared_task(base=LedgerTask, name="v.added")
def added(note: str) -> None:
    leave_trace(note)
