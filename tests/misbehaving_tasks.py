"""Ledger tasks whose bodies do what no body should; workers load them with ``-I``."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from celery import shared_task
from celery.exceptions import Ignore
from django.db import connection, transaction

from tasks.errors import Cancelled, RetryAfter, Snooze
from tasks.run import current_run
from tasks.task import LedgerTask
from tests.surviving_tasks import leave_trace


def sql(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def effect_in_an_open_transaction() -> None:
    transaction.atomic().__enter__()
    sql("INSERT INTO trace (note, backend) VALUES ('uncommitted', 0)")


def effect_without_autocommit() -> None:
    connection.set_autocommit(False)
    sql("INSERT INTO trace (note, backend) VALUES ('uncommitted', 0)")


def raises(error: BaseException) -> Any:
    def body() -> None:
        raise error

    return body


BODIES: dict[str, Any] = {
    "search_path": lambda: sql("SET search_path = nowhere"),
    "read_only": lambda: sql("SET default_transaction_read_only = on"),
    "role": lambda: sql("SET ROLE pg_monitor"),
    "closed": connection.close,
    "atomic": effect_in_an_open_transaction,
    "autocommit": effect_without_autocommit,
    "ignore_nul": raises(Ignore("a\x00b")),
    "ignore_surrogate": raises(Ignore("\ud800")),
    "cancelled_nul": raises(Cancelled("a\x00b")),
    "exit": lambda: sys.exit(3),
    "exit_quietly": sys.exit,
    "async_cancelled": raises(asyncio.CancelledError()),
}


@shared_task(base=LedgerTask, name="m.misbehaves")
def misbehaves(how: str) -> None:
    leave_trace(how)
    BODIES[how]()


@shared_task(base=LedgerTask, name="m.delays")
def delays(kind: str, seconds: str) -> None:
    if current_run().fence < 3:
        raise (Snooze if kind == "snooze" else RetryAfter)(float(seconds))


@shared_task(base=LedgerTask, name="m.closes_its_transaction", atomic=True)
def closes_its_transaction() -> None:
    sql("INSERT INTO trace (note, backend) VALUES ('uncommitted', 0)")
    connection.close()


@shared_task(base=LedgerTask, name="m.declined", sensitive=("card", "owner"))
def declined(card: str, owner: dict[str, str]) -> None:
    raise ValueError(f"declined {card} of {owner['name']}")
