"""How the modules of the ledger speak SQL: by hand, over Django's connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db import connection

# Milliseconds for which a racer waits until the other's transaction ends. Set by the
# statement itself, so it costs no round trip.
LOCK_TIMEOUT_MS = 2000


def now() -> datetime:
    """The database's."""
    moment: datetime = fetch("SELECT clock_timestamp()", [])[0][0]
    return moment


def storable(text: str) -> str:
    """PostgreSQL text holds neither NUL nor lone surrogates."""
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()


Parameters = Sequence[Any] | Mapping[str, Any]


def execute(sql: str, parameters: Parameters) -> int:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return int(cursor.rowcount)


def fetch(sql: str, parameters: Parameters) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return list(cursor.fetchall())


def lock_timeout() -> str:
    return str(fetch("SELECT current_setting('lock_timeout')", [])[0][0])


def set_lock_timeout(value: str) -> None:
    """For the rest of this transaction."""
    fetch("SELECT set_config('lock_timeout', %s, true)", [value])
