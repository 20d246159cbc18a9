"""What a dispatch costs beside much else in the table: ratios to an almost empty one.

Each content has a database of its own on the same server, so that the rounds go A B C A B C.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any, LiteralString
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql
from rich.table import Table

from devtools.bench.report import Sample
from devtools.bench.systems import JOBS_QUEUE
from devtools.child import ROOT
from devtools.stack import Stack

NAME = "dispatch"
FEW = 50
# Dispatches of one round, each of 20 jobs; the round counts with their median.
PASSES = 20
ENDS_WITHIN_S = 20.0

INSERT: LiteralString = (
    "INSERT INTO tasks_job (id, task, queue, tenant, idempotency_key, fingerprint, payload, state,"
    " due, run_at, finished_at)"
    " SELECT gen_random_uuid(), 'devtools.benched.tasks.noop', %(queue)s, 't' || n %% %(tenants)s,"
    " gen_random_uuid()::text, '', '{}', %(state)s, %(due)s,"
    " now() + %(from_now_s)s * interval '1 second', CASE WHEN %(ended)s THEN now() END"
    " FROM generate_series(1, %(number)s) AS n"
)
TOMORROW_S = 24 * 3600.0


@dataclass(frozen=True)
class Rows:
    """``of_size``: how many, as a part of the size of the bench; 0 is just a few."""

    of_size: float = 0.0
    state: str = "queued"
    due: bool = True
    tenants: int = 1


@dataclass(frozen=True)
class Content:
    """What lies in one table."""

    name: str
    told: str
    rows: Sequence[Rows]


CONTENTS = (
    Content("few", "{:,} waiting", [Rows()]),
    Content(
        "history",
        "{:,} finished, {:,} waiting of one tenant",
        [Rows(1.0, "succeeded"), Rows(0.1)],
    ),
    Content(
        "tomorrow", "{:,} scheduled for tomorrow, {:,} waiting", [Rows(1.0, due=False), Rows()]
    ),
    Content("hundred", "{:,} waiting of 100 tenants", [Rows(tenants=100)]),
    Content("tenants", "{:,} waiting of 10,000 tenants", [Rows(0.1, tenants=10_000)]),
)


def number_of(rows: Rows, size: int) -> int:
    return int(rows.of_size * size) or max(FEW, rows.tenants)


def told(content: Content, size: int) -> str:
    return content.told.format(*(number_of(rows, size) for rows in content.rows))


# --- measure --------------------------------------------------------------------------------


def run(stack: Stack, rounds: int, size: int) -> Iterator[Sample]:
    urls = {content.name: filled(stack, content, size) for content in CONTENTS}
    with ExitStack() as exits:
        timers = {
            name: exits.enter_context(timer({**stack.env, "DATABASE_URL": url}))
            for name, url in urls.items()
        }
        for process in timers.values():
            timed(process)  # plans, pages and connections are warm before it counts
        for number in range(1, rounds + 1):
            for name, process in timers.items():
                yield Sample(number, NAME, name, timed(process))


def filled(stack: Stack, content: Content, size: int) -> str:
    """The address of a database with this content, as it is after its vacuum."""
    address = urlsplit(stack.env["DATABASE_URL"])
    migrated, name = address.path.removeprefix("/"), f"bench_{content.name}"
    with psycopg.connect(urlunsplit(address._replace(path="/postgres")), autocommit=True) as to:
        create = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        to.execute(create.format(sql.Identifier(name), sql.Identifier(migrated)))
    url = urlunsplit(address._replace(path=f"/{name}"))
    with psycopg.connect(url, autocommit=True) as connection:
        for rows in content.rows:
            insert(connection, rows, number_of(rows, size))
        connection.execute("VACUUM (ANALYZE) tasks_job")
    return url


def insert(connection: psycopg.Connection[Any], rows: Rows, number: int) -> None:
    connection.execute(
        INSERT,
        {
            "queue": JOBS_QUEUE,
            "tenants": rows.tenants,
            "state": rows.state,
            "due": rows.due,
            "from_now_s": 0.0 if rows.due else TOMORROW_S,
            "ended": rows.state == "succeeded",
            "number": number,
        },
    )


@contextmanager
def timer(environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "devtools.benched.dispatching"],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.communicate(timeout=ENDS_WITHIN_S)  # the end of its input ends it


def timed(process: subprocess.Popen[str]) -> dict[str, float]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{PASSES}\n")
    process.stdin.flush()
    measured: dict[str, float] = json.loads(process.stdout.readline())
    return measured


# --- report ---------------------------------------------------------------------------------


def medians(samples: Sequence[Sample], size: int) -> list[dict[str, Any]]:
    ms = {
        content.name: median(s.figures["ms"] for s in samples if s.system == content.name)
        for content in CONTENTS
    }
    few = ms[CONTENTS[0].name]
    return [{"table": told(c, size), "ms": ms[c.name], "ratio": ms[c.name] / few} for c in CONTENTS]


def table(samples: Sequence[Sample], rounds: int, size: int) -> Table:
    title = f"A dispatch of 20 jobs, median of {rounds} rounds"
    shown = Table(title=title, title_justify="left", title_style="bold")
    shown.add_column("in the table")
    for heading in ("ms", "ratio"):
        shown.add_column(heading, justify="right")
    for row in medians(samples, size):
        shown.add_row(row["table"], f"{row['ms']:.2f}", f"{row['ratio']:.2f} x")
    return shown


def as_json(samples: Sequence[Sample], about: dict[str, Any], size: int) -> dict[str, Any]:
    return {
        "about": {**about, "rows": size},
        "medians": medians(samples, size),
        "samples": [vars(sample) for sample in samples],
    }
