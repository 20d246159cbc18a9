"""Which environment a ledger belongs to, and that no process of another one touches it.

A restored dump of production is the classic: a staging worker that meets it would run its
jobs again, with real money. So ``migrate`` writes the name of its environment beside the table
of jobs, where a dump carries it along, and every process compares it at its first connection.

Unchecked where ``TASKS_ENVIRONMENT`` is empty. ``manage.py ledger_environment --set NAME`` hands
a ledger over.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, DatabaseError, InterfaceError, OperationalError, connection
from psycopg import sql

from tasks.connections import bounded

MARK = "environment: "
# As a comment of the table: no table of its own, and part of every dump.
READ = "SELECT obj_description(to_regclass('tasks_job'), 'pg_class')"


class ForeignLedger(OperationalError):
    """To those who use the ledger it is as good as away: nothing is read and nothing written."""


class Guard:
    """Remembers, per process, that the ledger has turned out to be ours."""

    def __init__(self) -> None:
        self.satisfied = False

    def check(self, *, connection: Any, **_: Any) -> None:
        """On each new connection until one has shown whose the ledger is."""
        ours = environment()
        if self.satisfied or not ours or connection.alias != DEFAULT_DB_ALIAS:
            return
        theirs = owner(connection)
        if theirs and theirs != ours:
            connection.close()
            raise ForeignLedger(
                f"This ledger belongs to the environment {theirs!r}, and this process to {ours!r}."
                " Correct DATABASE_URL or ENVIRONMENT; if the ledger is a copy that shall become"
                f" yours: manage.py ledger_environment --set {ours}"
            )
        self.satisfied = bool(theirs)


GUARD = Guard()


def environment() -> str:
    """The name of this process's environment (``TASKS_ENVIRONMENT``)."""
    return getattr(settings, "TASKS_ENVIRONMENT", "")


def owner(connection: Any = connection) -> str:
    """The environment that the ledger belongs to; empty before it belongs to any."""
    with connection.cursor() as cursor:
        cursor.execute(READ)
        text: str = cursor.fetchone()[0] or ""
    return text.removeprefix(MARK) if text.startswith(MARK) else ""


def claim_ledger(**_: Any) -> None:
    """After each migrate: what belongs to nobody is ours."""
    if environment() and not owner():
        set_owner(environment())


def set_owner(name: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql.SQL("COMMENT ON TABLE tasks_job IS {}").format(sql.Literal(MARK + name)))


def refuse_foreign_ledger() -> None:
    """Ends a process that starts on a ledger of others. An outage is no reason to end."""
    try:
        with bounded():
            connection.ensure_connection()
    except ForeignLedger as error:
        raise SystemExit(str(error)) from None
    except (DatabaseError, InterfaceError):
        return
