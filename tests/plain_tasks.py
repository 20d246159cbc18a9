"""Plain Celery tasks for workers under test; loaded with ``-I tests.plain_tasks``.

They leave their traces in the table ``trace``, which ``tests.broker.trace_table`` makes.
"""

from __future__ import annotations

import time

from celery import shared_task
from django.db import connection


@shared_task(name="plain.trace", ignore_result=True)
def trace(note: str) -> None:
    """Writes the note and the database backend that served it."""
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO trace (note, backend) VALUES (%s, pg_backend_pid())", [note])


@shared_task(name="plain.trace_and_sleep", ignore_result=True)
def trace_and_sleep(note: str, seconds: float) -> None:
    trace(note)
    time.sleep(seconds)
    trace(f"{note} ended")


@shared_task(name="plain.leave_a_transaction_open", ignore_result=True)
def leave_a_transaction_open() -> None:
    connection.set_autocommit(False)
    trace("never committed")
