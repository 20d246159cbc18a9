"""``manage.py workers``: who works on what, and whether a worker is safe to stop."""

from __future__ import annotations

import json
import math
import time
from argparse import ArgumentTypeError
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from tasks import fleet
from tasks.fleet import Stop, WorkerStatus
from tasks.tables import table

# Seconds between two looks.
PAUSE_S = 0.5
COLUMNS = (
    "NAME", "STATE", "QUEUES", "CAPACITY", "BUSY", "RELEASE", "PID", "HOST", "LAST BEAT",
)  # fmt: skip


class Command(BaseCommand):
    help = (
        "Lists the workers. --safe-to-stop NAME exits 0 when no job runs there, 1 when some"
        " do after --wait seconds, 2 when there is no such worker."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--safe-to-stop", metavar="NAME", help="whether nothing runs there")
        parser.add_argument(
            "--wait", type=seconds, default=0.0, metavar="S", help="for at most S seconds"
        )
        parser.add_argument("--json", action="store_true", help="the answer as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["safe_to_stop"] is None:
            self.list_all(as_json=options["json"])
        else:
            self.tell(options["safe_to_stop"], options["wait"], as_json=options["json"])

    def list_all(self, *, as_json: bool) -> None:
        workers = fleet.workers()
        if as_json:
            self.stdout.write(dumps([asdict(worker) for worker in workers]))
        elif workers:
            self.stdout.write(table(COLUMNS, [row(worker) for worker in workers]))
        else:
            self.stdout.write("No worker has beaten for a day.")

    def tell(self, name: str, wait_s: float, *, as_json: bool) -> None:
        stop = settled(name, wait_s)
        if as_json:
            running = [asdict(job) for job in stop.running]
            answer = {"name": name, "safe_to_stop": stop.is_safe, "running": running}
            self.stdout.write(dumps({**answer, "state": stop.worker.state}))
        elif stop.running:
            jobs = [(job.id, job.task, f"{job.since:%Y-%m-%d %H:%M:%S %Z}") for job in stop.running]
            self.stdout.write(table(("JOB", "TASK", "SINCE"), jobs))
        elif stop.is_safe:
            self.stdout.write(f"{name} is {stop.worker.state}, and nothing runs there.")
        if not stop.is_safe:
            raise CommandError(f"{name} is {stop.worker.state}: {why_not(stop)}.", returncode=1)


def seconds(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value >= 0):
        raise ArgumentTypeError("must be a number of seconds, 0 or more")
    return value


def settled(name: str, wait_s: float) -> Stop:
    """As soon as it is safe, else as it is after that time."""
    ends_at = time.monotonic() + wait_s
    while True:
        stop = fleet.stop_of(name)
        if stop is None:
            raise CommandError(unknown(name), returncode=2)
        left_s = ends_at - time.monotonic()
        if stop.is_safe or left_s <= 0:
            return stop
        time.sleep(min(PAUSE_S, left_s))


def unknown(name: str) -> str:
    similar = fleet.similar_names(name)
    hint = f" Did you mean {' or '.join(similar)}?" if similar else ""
    return f"There is no worker {name!r}.{hint}"


def why_not(stop: Stop) -> str:
    if stop.running:
        return f"{len(stop.running)} job{'' if len(stop.running) == 1 else 's'} would be stopped"
    return "it holds messages that it has not begun"


def row(worker: WorkerStatus) -> tuple[object, ...]:
    return (
        worker.name, worker.state, ",".join(worker.queues), worker.capacity, worker.busy,
        worker.release or "-", worker.pid, worker.host, f"{worker.last_beat_age_s:.0f} s ago",
    )  # fmt: skip


def dumps(value: object) -> str:
    return json.dumps(value, default=str, ensure_ascii=False, indent=2)
