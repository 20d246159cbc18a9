"""The story of the bench: servers, rounds, table."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from devtools.bench import dispatch
from devtools.bench.alone import ALONE
from devtools.bench.disk import flush_ms
from devtools.bench.measures import COMPARED, Measure, Size, measure
from devtools.bench.report import Sample, about_the_disk, as_json, lines, table
from devtools.bench.systems import PROCESSES, Bench
from devtools.stack import Stack, release

# Servers of our own: the rounds empty them. Logs of single jobs are off on both sides.
ENVIRONMENT = {
    "DATABASE_URL": "",
    "BROKER_URL": "",
    "DJANGO_SETTINGS_MODULE": "devtools.benched.settings",
    "DEBUG": "0",
    "LOG_LEVEL": "WARNING",
}


MEASURES = {**COMPARED, **ALONE}
# Rows beside the measured jobs, and jobs that one worker runs: for a default run of about ten
# minutes, and as many as the goals speak of.
ROWS, MEMORY_JOBS = 50_000, 5_000
BIG_ROWS, BIG_MEMORY_JOBS = 1_000_000, 100_000


def main(argv: Sequence[str]) -> int:
    given = parse(argv)
    console = Console(highlight=False)
    console.print("Starting PostgreSQL and Redis ...")
    samples: list[Sample] = []
    with TemporaryDirectory(prefix="celeriac-bench-") as directory:
        environment = {**ENVIRONMENT, "BENCH_TALLY": str(Path(directory, "tally"))}
        with Stack(workers=(), relays=0, web=False, environment=environment) as stack:
            for sample in run(stack, given):
                samples.append(sample)
                console.print(told(sample))
    if is_dispatch(given):
        console.print(dispatch.table(samples, given.rounds, given.rows))
        written = dispatch.as_json(samples, about(given), given.rows)
    else:
        console.print(table(lines(samples), given.rounds))
        console.print(about_the_disk(samples))
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
    parser.add_argument(
        "--only", action="append", default=[], choices=names, metavar="NAME",
        help=f"may be given again: {', '.join(names)}",
    )  # fmt: skip
    parser.add_argument(
        "--big",
        action="store_true",
        help=f"{BIG_ROWS:,} rows and {BIG_MEMORY_JOBS:,} jobs where size is what is measured",
    )
    parser.add_argument(
        "--rows", type=int, metavar="N", help="in the table: backlog, history, dispatch"
    )
    parser.add_argument("--memory-jobs", type=int, metavar="N", help="that one worker runs: memory")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample, too")
    given = parser.parse_args(argv)
    if dispatch.NAME in given.only and len(given.only) > 1:
        parser.error(f"{dispatch.NAME} has databases and a table of its own: measure it alone")
    return with_sizes(given)


def is_dispatch(given: argparse.Namespace) -> bool:
    return bool(given.only == [dispatch.NAME])


def with_sizes(given: argparse.Namespace) -> argparse.Namespace:
    """``dispatch`` is about size, and only measured when it is named."""
    is_big = given.big or is_dispatch(given)
    given.rows = given.rows or (BIG_ROWS if is_big else ROWS)
    given.memory_jobs = given.memory_jobs or (BIG_MEMORY_JOBS if is_big else MEMORY_JOBS)
    return given


def run(stack: Stack, given: argparse.Namespace) -> Iterator[Sample]:
    """A B A B: what disturbs the machine disturbs both."""
    if is_dispatch(given):
        yield from dispatch.run(stack, given.rounds, given.rows)
        return
    bench = Bench.on(stack)
    size = Size(given.jobs, given.rows, given.memory_jobs)
    for number in range(1, given.rounds + 1):
        for name, chosen in wanted(given.only, number).items():
            for system in chosen.systems:
                disk_ms = flush_ms()
                figures = measure(bench, chosen, system, size)
                yield Sample(number, name, system, figures, disk_ms)


def wanted(only: Sequence[str], number: int) -> dict[str, Measure]:
    """In this round. What is asked for by name is measured in each."""
    if only:
        return {name: MEASURES[name] for name in MEASURES if name in only}
    return {name: m for name, m in MEASURES.items() if number == 1 or not m.once}


def told(sample: Sample) -> str:
    figures = ", ".join(f"{name} {value:,.2f}" for name, value in sample.figures.items())
    disk = f", disk {sample.disk_ms:.2f} ms" if sample.disk_ms else ""
    return f"  round {sample.round} {sample.measure:<8} {sample.system:<9} {figures}{disk}"


def about(given: argparse.Namespace) -> dict[str, Any]:
    return {
        "jobs": given.jobs,
        "rows": given.rows,
        "memory_jobs": given.memory_jobs,
        "rounds": given.rounds,
        "release": release(),
        "processors": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        **{name: version(name) for name in ("celery", "django", "psycopg", "redis")},
    }
