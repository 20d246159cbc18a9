"""Ledger tasks that wait, each in its own way; workers load them with ``-I``."""

from __future__ import annotations

import asyncio
import http.client
import socket
import time

from celery import shared_task
from django.db import connection, transaction

from tasks.run import current_run
from tasks.task import LedgerTask
from tests.surviving_tasks import leave_trace


@shared_task(base=LedgerTask, name="c.looks")
def looks(note: str) -> None:
    """Lives too short for a renewal, unless somebody cancels it."""
    leave_trace(f"{note} begins")
    ends_at = time.monotonic() + 30
    while time.monotonic() < ends_at:
        current_run().check()
        time.sleep(0.05)
    leave_trace(f"{note} ends")


@shared_task(base=LedgerTask, name="c.awaits")
async def awaits(note: str) -> None:
    await asyncio.to_thread(leave_trace, f"{note} begins")
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        await asyncio.to_thread(leave_trace, f"{note} cleans up")
        raise
    await asyncio.to_thread(leave_trace, f"{note} ends")


@shared_task(base=LedgerTask, name="c.calls", autoretry_for=(OSError, http.client.HTTPException))
def calls(note: str, port: int) -> None:
    """A client without a time limit of its own, and a server that never answers."""
    client = http.client.HTTPConnection("127.0.0.1", port)
    client.connect()
    leave_trace(f"{note} begins")
    with current_run().on_interrupt(lambda: client.sock.shutdown(socket.SHUT_RDWR)):
        client.request("GET", "/")
        client.getresponse()
    leave_trace(f"{note} ends")


@shared_task(base=LedgerTask, name="c.queries")
def queries(note: str) -> None:
    leave_trace(f"{note} begins")
    with connection.cursor() as cursor, current_run().on_interrupt(cursor.connection.cancel_safe):
        cursor.execute("SELECT pg_sleep(60)")
    leave_trace(f"{note} ends")


@shared_task(base=LedgerTask, name="c.deaf")
def deaf(note: str, seconds: float) -> None:
    """Looks at nothing."""
    leave_trace(f"{note} begins")
    time.sleep(seconds)
    leave_trace(f"{note} ends")


@shared_task(base=LedgerTask, name="c.fails_after_commit", atomic=True)
def fails_after_commit(note: str) -> str:
    def fail() -> None:
        raise ValueError("after the commit")

    transaction.on_commit(fail)
    return note
