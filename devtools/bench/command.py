"""The story of the bench: servers, rounds, table."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from devtools.bench import dispatch
from devtools.bench.measures import MEASURES, measure
from devtools.bench.report import Sample, as_json, lines, table
from devtools.bench.systems import NAMES, PROCESSES, Bench
from devtools.stack import Stack, release

# Servers of our own: the rounds empty them. Logs of single jobs are off on both sides.
ENVIRONMENT = {
    "DATABASE_URL": "",
    "BROKER_URL": "",
    "DJANGO_SETTINGS_MODULE": "devtools.benched.settings",
    "DEBUG": "0",
    "LOG_LEVEL": "WARNING",
}


def main(argv: Sequence[str]) -> int:
    given = parse(argv)
    console = Console(highlight=False)
    console.print("Starting PostgreSQL and Redis ...")
    samples: list[Sample] = []
    with Stack(workers=(), relays=0, web=False, environment=ENVIRONMENT) as stack:
        for sample in run(stack, given):
            samples.append(sample)
            console.print(told(sample))
    if given.only == dispatch.NAME:
        console.print(dispatch.table(samples, given.rounds, given.rows))
        written = dispatch.as_json(samples, about(given), given.rows)
    else:
        console.print(table(lines(samples), given.rounds))
        written = as_json(samples, about(given))
    if given.json:
        given.json.write_text(json.dumps(written, indent=1) + "\n")
    return 0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./dev bench",
        description="The same no-op task on plain Celery (acks_late, prefetch 1, no results) and"
        f" on Celeriac, {PROCESSES} worker processes each, in turns. The ratio is what counts:"
        " absolute figures change with the machine and the hour.",
    )
    parser.add_argument("--jobs", type=int, default=2000, metavar="N", help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3, metavar="R")
    names = [*MEASURES, dispatch.NAME]
    parser.add_argument("--only", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument(
        "--rows",
        type=int,
        default=dispatch.ROWS,
        metavar="N",
        help=f"in the table, of {dispatch.NAME}: measured only when it is named",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample, too")
    return parser.parse_args(argv)


def run(stack: Stack, given: argparse.Namespace) -> Iterator[Sample]:
    """A B A B: what disturbs the machine disturbs both."""
    if given.only == dispatch.NAME:
        yield from dispatch.run(stack, given.rounds, given.rows)
        return
    bench = Bench.on(stack)
    for number in range(1, given.rounds + 1):
        for name in [given.only] if given.only else MEASURES:
            for system in NAMES:
                yield Sample(number, name, system, measure(bench, name, system, given.jobs))


def told(sample: Sample) -> str:
    figures = ", ".join(f"{name} {value:,.2f}" for name, value in sample.figures.items())
    return f"  round {sample.round} {sample.measure:<8} {sample.system:<9} {figures}"


def about(given: argparse.Namespace) -> dict[str, Any]:
    return {
        "jobs": given.jobs,
        "rounds": given.rounds,
        "release": release(),
        "processors": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        **{name: version(name) for name in ("celery", "django", "psycopg", "redis")},
    }
