"""What is measured: each takes one system through one round and returns its figures.

Here is what both systems do; what only Celeriac does, or promises, is in ``alone.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import quantiles

from devtools.bench.cpu import seconds_of_trees
from devtools.bench.systems import CELERIAC, NAMES, Bench
from devtools.child import Child

Figures = dict[str, float]

LOOK_EVERY_S = 0.005
STALLED_AFTER_S = 60.0
TRICKLED = 100
TRICKLED_PER_S = 20.0
HALF_LOAD_FOR_S = 5.0
WARM_UP = 20
MEASURED = 100
# As many rows for each job of the drain: what takes a microsecond a row needs more of them.
BULK_FACTOR = 5


@dataclass(frozen=True)
class Size:
    """How much is measured. Jobs of most measures; rows beside them in the table; jobs that one
    worker runs without growing."""

    jobs: int
    rows: int
    memory_jobs: int


@dataclass(frozen=True)
class Measure:
    """``once``: in the first round only, because it takes long and is no comparison."""

    run: Callable[[Bench, str, Size], Figures]
    systems: Sequence[str] = NAMES
    once: bool = False


def drain(bench: Bench, system: str, size: Size) -> Figures:
    """All jobs wait; from the first that ran to the last, with the CPU of every process."""
    bench.load(system, "bulk", size.jobs - 1)
    return drained(bench, start(bench, system), size.jobs)


def drain_batched(bench: Bench, system: str, size: Size) -> Figures:
    """The same in batches. How long its jobs take is known by then, as on any other day."""
    if system == CELERIAC:
        start(bench, system)
        bench.load(system, "batched", MEASURED)
        wait_for(bench, MEASURED + 1)
        bench.stop_all()
    before = bench.done()
    bench.load(system, "batched", size.jobs - 1)
    return drained(bench, start(bench, system), size.jobs, before=before)


def drained(bench: Bench, children: Sequence[Child], jobs: int, *, before: int = 0) -> Figures:
    """``before``: jobs that had run already."""
    pids = [child.pid for child in children]
    wait_for(bench, before + 1)
    first, first_at = bench.done(), time.monotonic()
    own, servers = seconds_of_trees(pids), seconds_of_trees(bench.server_pids())
    wait_for(bench, before + jobs)
    seconds = max(time.monotonic() - first_at, LOOK_EVERY_S)
    own = seconds_of_trees(pids) - own
    servers = seconds_of_trees(bench.server_pids()) - servers
    # Of a handful, none may be left at the first look.
    ran = max(before + jobs - first, 1)
    return {
        "jobs_per_s": ran / seconds,
        "cpu_ms_per_job_processes": own / ran * 1000,
        "cpu_ms_per_job_servers": servers / ran * 1000,
        "cpu_ms_per_job": (own + servers) / ran * 1000,
    }


def enqueue(bench: Bench, system: str, size: Size) -> Figures:
    """One call after the other from one process; nobody consumes."""
    taken = bench.load(system, "one-by-one", size.jobs)
    return {
        "calls_per_s": size.jobs / taken["seconds"],
        "cpu_ms_per_call": taken["cpu_s"] / size.jobs * 1000,
    }


def bulk(bench: Bench, system: str, size: Size) -> Figures:
    rows = size.jobs * BULK_FACTOR if system == CELERIAC else size.jobs
    return {"rows_per_s": rows / bench.load(system, "bulk", rows)["seconds"]}


def pickup(bench: Bench, system: str, size: Size) -> Figures:
    """From the call that enqueues to the first line of the body, one job each 50 ms."""
    start(bench, system)
    bench.load(system, "one-by-one", WARM_UP)
    wait_for(bench, WARM_UP + 1)
    return picked_up(bench, system, TRICKLED, TRICKLED_PER_S)


def half(bench: Bench, system: str, size: Size) -> Figures:
    """The same at half of the rate at which this system has just drained."""
    bench.load(system, "bulk", size.jobs - 1)
    per_s = drained(bench, start(bench, system), size.jobs)["jobs_per_s"] / 2
    return picked_up(bench, system, min(size.jobs, int(per_s * HALF_LOAD_FOR_S)), per_s)


def picked_up(bench: Bench, system: str, number: int, per_s: float) -> Figures:
    bench.load(system, "trickle", number, per_s=per_s)
    wait(lambda: len(bench.pickups_ms()) >= number)
    cuts = quantiles(bench.pickups_ms(), n=100, method="inclusive")
    return {"p50_ms": cuts[49], "p99_ms": cuts[98]}


def start(bench: Bench, system: str) -> list[Child]:
    """A worker, and for Celeriac a relay."""
    worker = bench.start_worker(system)
    return [worker, bench.start_relay()] if system == CELERIAC else [worker]


# --- run ------------------------------------------------------------------------------------


def measure(bench: Bench, chosen: Measure, system: str, size: Size) -> Figures:
    """From a clean state to a clean state."""
    bench.empty()
    try:
        return chosen.run(bench, system, size)
    finally:
        bench.stop_all()


def wait_for(bench: Bench, jobs: int) -> None:
    """Until so many ran. What moves may take as long as it likes."""
    done, moved_at = bench.done(), time.monotonic()
    while done < jobs:
        time.sleep(LOOK_EVERY_S)
        before, done = done, bench.done()
        if done != before:
            moved_at = time.monotonic()
        elif time.monotonic() > moved_at + STALLED_AFTER_S:
            raise TimeoutError(f"no job ended for {STALLED_AFTER_S:g} s, {done} of {jobs} did")


def wait(is_over: Callable[[], bool]) -> None:
    deadline = time.monotonic() + STALLED_AFTER_S
    while not is_over():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing happened within {STALLED_AFTER_S:g} s")
        time.sleep(LOOK_EVERY_S)


COMPARED = {
    "drain": Measure(drain),
    "drain-batched": Measure(drain_batched),
    "enqueue": Measure(enqueue),
    "bulk": Measure(bulk),
    "pickup": Measure(pickup),
    "half": Measure(half),
}
