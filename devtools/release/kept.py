"""The files in which a release is kept: its schema, and the statements of its code.

A statement is plain SQL, its values filled in, below a line that says in which phase it ran, which
function sent it and how many rows it was about.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from devtools.child import ROOT

DIRECTORY = ROOT / "tests" / "fixtures" / "previous_release"
# The apps whose tables both releases use.
APPS = ("tasks", "project")
# Before the migration of the next release, and after it.
BEFORE, AFTER = "before", "after"
HEADING = re.compile(r"^-- (before|after): ([a-z_.]+): (-?\d+) rows$", re.MULTILINE)


@dataclass(frozen=True)
class Statement:
    phase: str
    by: str
    rows: int
    sql: str


@dataclass(frozen=True)
class Kept:
    """``migrations``: app and name, in the order in which they were applied."""

    migrations: list[tuple[str, str]]
    schema: str
    statements: list[Statement]


def write(kept: Kept, directory: Path = DIRECTORY) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    names = "".join(f"{app}.{name}\n" for app, name in kept.migrations)
    (directory / "migrations.txt").write_text(names)
    (directory / "schema.sql").write_text(kept.schema)
    (directory / "statements.sql").write_text(as_text(kept.statements))


def as_text(statements: Iterable[Statement]) -> str:
    return "".join(f"-- {s.phase}: {s.by}: {s.rows} rows\n{s.sql}\n\n" for s in statements)


def read(directory: Path = DIRECTORY) -> Kept:
    lines = (directory / "migrations.txt").read_text().split()
    parts = HEADING.split((directory / "statements.sql").read_text())[1:]
    rows = [parts[start : start + 4] for start in range(0, len(parts), 4)]
    return Kept(
        [(app, name) for app, _, name in (line.partition(".") for line in lines)],
        (directory / "schema.sql").read_text(),
        [Statement(phase, by, int(number), sql.strip()) for phase, by, number, sql in rows],
    )
