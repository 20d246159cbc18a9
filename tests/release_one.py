"""The tasks of one release; ``tests.release_two`` is the next one. Workers load them with ``-I``.

No test process imports this module: both declare tasks of the same names.
"""

from __future__ import annotations

from celery import shared_task

from tasks.task import LedgerTask
from tests.surviving_tasks import leave_trace


@shared_task(base=LedgerTask, name="v.greet")
def greet(name: str) -> None:
    leave_trace(f"one greets {name}")
