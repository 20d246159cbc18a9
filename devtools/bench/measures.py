"""What is measured. Each takes one system through one round and returns its figures."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import quantiles

from devtools.bench.cpu import seconds_of_trees
from devtools.bench.systems import CELERIAC, Bench

Figures = dict[str, float]
Measure = Callable[[Bench, str, int], Figures]

LOOK_EVERY_S = 0.005
STALLED_AFTER_S = 60.0
TRICKLED = 100
WARM_UP = 20
MEASURED = 100
# As many rows for each job of the drain: what takes a microsecond a row needs more of them.
BULK_FACTOR = 5


def drain(bench: Bench, system: str, jobs: int) -> Figures:
    """All jobs wait; from the first that ran to the last, with the CPU of every process."""
    return drained(bench, system, "bulk", jobs)


def drain_batched(bench: Bench, system: str, jobs: int) -> Figures:
    """The same in batches. How long its jobs take is known by then, as on any other day."""
    if system == CELERIAC:
        bench.start_worker(system)
        bench.start_relay()
        bench.load(system, "batched", MEASURED)
        _wait_for(bench, MEASURED + 1)
        bench.stop_all()
    return drained(bench, system, "batched", jobs)


def drained(bench: Bench, system: str, way: str, jobs: int) -> Figures:
    before = bench.done()
    bench.load(system, way, jobs - 1)
    began = [bench.start_worker(system)] if system == CELERIAC else []
    began.append(bench.start_relay() if system == CELERIAC else bench.start_worker(system))
    pids = [child.pid for child in began]
    _wait_for(bench, before + 1)
    first, first_at = bench.done(), time.monotonic()
    own, servers = seconds_of_trees(pids), seconds_of_trees(bench.server_pids())
    _wait_for(bench, before + jobs)
    seconds = time.monotonic() - first_at
    own = seconds_of_trees(pids) - own
    servers = seconds_of_trees(bench.server_pids()) - servers
    ran = before + jobs - first
    return {
        "jobs_per_s": ran / seconds,
        "cpu_ms_per_job_processes": own / ran * 1000,
        "cpu_ms_per_job_servers": servers / ran * 1000,
        "cpu_ms_per_job": (own + servers) / ran * 1000,
    }


def enqueue(bench: Bench, system: str, jobs: int) -> Figures:
    """One call after the other from one process; nobody consumes."""
    taken = bench.load(system, "one-by-one", jobs)
    return {"calls_per_s": jobs / taken["seconds"], "cpu_ms_per_call": taken["cpu_s"] / jobs * 1000}


def bulk(bench: Bench, system: str, jobs: int) -> Figures:
    rows = jobs * BULK_FACTOR if system == CELERIAC else jobs
    return {"rows_per_s": rows / bench.load(system, "bulk", rows)["seconds"]}


def pickup(bench: Bench, system: str, jobs: int) -> Figures:
    """From the call that enqueues to the first line of the body, one job each 50 ms."""
    bench.start_worker(system)
    if system == CELERIAC:
        bench.start_relay()
    bench.load(system, "one-by-one", WARM_UP)
    _wait_for(bench, WARM_UP + 1)
    bench.load(system, "trickle", TRICKLED)
    _wait(lambda: len(bench.pickups_ms()) >= TRICKLED)
    cuts = quantiles(bench.pickups_ms(), n=100, method="inclusive")
    return {"p50_ms": cuts[49], "p99_ms": cuts[98]}


MEASURES: dict[str, Measure] = {
    "drain": drain,
    "drain-batched": drain_batched,
    "enqueue": enqueue,
    "bulk": bulk,
    "pickup": pickup,
}


def measure(bench: Bench, name: str, system: str, jobs: int) -> Figures:
    """From a clean state to a clean state."""
    bench.empty()
    try:
        return MEASURES[name](bench, system, jobs)
    finally:
        bench.stop_all()


def _wait_for(bench: Bench, jobs: int) -> None:
    _wait(lambda: bench.done() >= jobs)


def _wait(is_over: Callable[[], bool]) -> None:
    deadline = time.monotonic() + STALLED_AFTER_S
    while not is_over():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the jobs did not end within {STALLED_AFTER_S:g} s")
        time.sleep(LOOK_EVERY_S)
