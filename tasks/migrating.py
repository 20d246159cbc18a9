"""While ``migrate`` changes a table, the release that runs goes on.

A statement that waits for a table's lock makes all others of that table wait behind it: one open
transaction, and every worker stands. So a migration waits briefly, fails and is run again.
"""

from __future__ import annotations

from typing import Any

from django.db import connections

# All that accept and run jobs may wait for as long.
PATIENCE = "5s"
NO_END = "0"


def be_brief(*, using: str, **_: Any) -> None:
    """Before migrations, unless somebody has set another time (``PGOPTIONS``)."""
    change(using, old=NO_END, new=PATIENCE)


def be_patient(*, using: str, **_: Any) -> None:
    """After them: the connection may be used for something else."""
    change(using, old=PATIENCE, new=NO_END)


def change(using: str, *, old: str, new: str) -> None:
    if connections[using].vendor != "postgresql":
        return
    with connections[using].cursor() as cursor:
        cursor.execute(
            "SELECT set_config('lock_timeout', %s, false)"
            " WHERE current_setting('lock_timeout') = %s",
            [new, old],
        )
