"""What is measured on Celeriac alone: what plain Celery does not have, or does not promise."""

from __future__ import annotations

import time
from random import uniform
from statistics import median
from uuid import uuid4

from devtools.bench.cpu import TICKS, megabytes_of_trees, seconds_of_trees
from devtools.bench.dispatch import Rows, insert
from devtools.bench.measures import (
    WARM_UP,
    Figures,
    Measure,
    Size,
    drain,
    drained,
    start,
    wait,
    wait_for,
)
from devtools.bench.systems import ASYNC_QUEUE, CELERIAC, PROCESSES, THREADS, Bench
from devtools.benched.load import WAITS_S
from tasks.topology import LEASE_S

# Half of what one process of the web must bear, in requests a second.
HALF_OF_HTTP_PER_S = 125.0
HTTP_HALF_FOR_S = 8.0
CONNECTIONS_AT_HALF = 8
SETTLES_S = 3.0
IDLE_FOR_S = 10.0
RENEWS_EVERY_S = LEASE_S / 3
WAITING_JOBS = 2000
LOADED_AT_ONCE = 10_000


def http(bench: Bench, system: str, size: Size) -> Figures:
    """``POST /api/jobs`` to one process of four threads; its p99 at half of the goal."""
    name = f"bench-{uuid4()}"
    client = bench.stack.manage("api_client", name, "--tenant", "", "--scopes", "enqueue")
    token = client.split()[-1]
    url = bench.start_web()
    posting = ("devtools.benched.posting", url, token)
    bench.measured(*posting, str(THREADS), "100")
    most = bench.measured(*posting, str(THREADS), str(size.jobs))
    number = min(size.jobs, int(HALF_OF_HTTP_PER_S * HTTP_HALF_FOR_S))
    half = bench.measured(*posting, str(CONNECTIONS_AT_HALF), str(number), str(HALF_OF_HTTP_PER_S))
    return {"requests_per_s": most["per_s"], "p50_ms": half["p50_ms"], "p99_ms": half["p99_ms"]}


def rescue(bench: Bench, system: str, size: Size) -> Figures:
    """SIGKILL of a worker with jobs: seconds until each has begun again on another one."""
    bench.start_worker(system, name="killed")
    bench.start_relay()
    bench.load(system, "held", PROCESSES)
    wait(lambda: len(bench.starts()) == PROCESSES)
    bench.start_worker(system, name="other")
    time.sleep(uniform(0, RENEWS_EVERY_S))  # somewhere between two renewals
    bench.stack.supervisor.kill("worker-killed")
    killed_at = time.time()
    wait(lambda: len(bench.starts()) == 2 * PROCESSES)
    bench.let_go()
    taken_s = [began - killed_at for began in bench.starts()[PROCESSES:]]
    return {"median_s": median(taken_s), "longest_s": max(taken_s)}


def idle(bench: Bench, system: str, size: Size) -> Figures:
    """A relay that has nothing to do: part of a core, and memory."""
    relay = bench.start_relay()
    wait(lambda: is_asleep(bench))
    time.sleep(SETTLES_S)
    before = seconds_of_trees([relay.pid])
    time.sleep(IDLE_FOR_S)
    used_s = seconds_of_trees([relay.pid]) - before
    return {
        "cpu_percent": used_s / IDLE_FOR_S * 100,
        "resident_mb": megabytes_of_trees([relay.pid]),
    }


def is_asleep(bench: Bench) -> bool:
    with bench.stack.connect() as connection:
        return bool(connection.execute("SELECT FROM tasks_relay WHERE sleeping").fetchall())


def backlog(bench: Bench, system: str, size: Size) -> Figures:
    """The relay beside many waiting rows: memory and CPU against those beside a few."""
    beside_few = relayed(bench, size.jobs)
    bench.stop_all()
    bench.empty()
    fill(bench, Rows(1.0), size.rows)
    beside_many = relayed(bench, size.jobs)
    return {
        "grown_mb": beside_many["mb"] - beside_few["mb"],
        "resident_mb": beside_many["mb"],
        "cpu_of_few": beside_many["cpu_s"] / beside_few["cpu_s"],
    }


def relayed(bench: Bench, jobs: int) -> Figures:
    """What a relay needs for so many jobs."""
    bench.load(CELERIAC, "bulk", 2 * jobs)  # it is busy all the time
    _, relay = start(bench, CELERIAC)
    wait_for(bench, 1)
    first, before = bench.done(), seconds_of_trees([relay.pid])
    wait_for(bench, first + jobs)
    used_s = max(seconds_of_trees([relay.pid]) - before, 1 / TICKS)
    return {"cpu_s": used_s, "mb": megabytes_of_trees([relay.pid])}


def history(bench: Bench, system: str, size: Size) -> Figures:
    """A drain beside many finished rows, against one in an empty table."""
    empty = drain(bench, system, size)
    bench.stop_all()
    bench.empty()
    fill(bench, Rows(1.0, "succeeded"), size.rows)
    full = drain(bench, system, size)
    empty_cpu_ms = max(empty["cpu_ms_per_job"], 1000 / TICKS / size.jobs)
    return {
        "jobs_per_s": full["jobs_per_s"],
        "speed_of_empty": full["jobs_per_s"] / empty["jobs_per_s"],
        "cpu_of_empty": full["cpu_ms_per_job"] / empty_cpu_ms,
    }


def fill(bench: Bench, rows: Rows, number: int) -> None:
    with bench.stack.connect() as connection:
        insert(connection, rows, number)
        connection.execute("VACUUM (ANALYZE) tasks_job")


def written(bench: Bench, system: str, size: Size) -> Figures:
    """Row versions and WAL of a job, from its call to its end, with all that beats beside it."""
    start(bench, system)
    bench.load(system, "one-by-one", WARM_UP)
    wait_for(bench, WARM_UP + 1)
    before = written_so_far(bench)
    bench.load(system, "one-by-one", size.jobs)
    wait_for(bench, WARM_UP + size.jobs + 2)
    wait(lambda: unfinished(bench) == 0)
    after = written_so_far(bench)
    return {
        "row_versions": (after[0] - before[0]) / (size.jobs + 1),
        "wal_kb": (after[1] - before[1]) / 1024 / (size.jobs + 1),
    }


# A session tells what it did at most once a second, when its transaction ends.
TOLD_WITHIN_S = 2.5


def written_so_far(bench: Bench) -> tuple[float, float]:
    """Row versions of all tables, bytes of WAL."""
    time.sleep(TOLD_WITHIN_S)
    with bench.stack.connect() as connection:
        row = connection.execute(
            "SELECT (SELECT sum(n_tup_ins + n_tup_upd) FROM pg_stat_user_tables)::float8,"
            " pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8"
        ).fetchone()
    assert row is not None
    versions, wal = row
    return float(str(versions)), float(str(wal))


def unfinished(bench: Bench) -> int:
    with bench.stack.connect() as connection:
        row = connection.execute(
            "SELECT count(*) FROM tasks_job WHERE state IN ('queued', 'dispatched', 'running')"
        ).fetchone()
    return int(str(row[0])) if row else 0


def memory(bench: Bench, system: str, size: Size) -> Figures:
    """What a worker and its children grow by while they run many jobs."""
    worker, relay = start(bench, system)
    bench.load(system, "bulk", size.jobs - 1)
    wait_for(bench, size.jobs)
    worker_mb, relay_mb = (megabytes_of_trees([child.pid]) for child in (worker, relay))
    ran = size.jobs
    for number in chunks(size.memory_jobs, LOADED_AT_ONCE):
        bench.load(system, "bulk", number - 1)
        wait_for(bench, ran := ran + number)
    return {
        "grown_mb": megabytes_of_trees([worker.pid]) - worker_mb,
        "relay_grown_mb": megabytes_of_trees([relay.pid]) - relay_mb,
        "resident_mb": megabytes_of_trees([worker.pid]),
    }


def chunks(number: int, most: int) -> list[int]:
    return [min(most, number - begin) for begin in range(0, number, most)]


def asynchronous(bench: Bench, system: str, size: Size) -> Figures:
    """One process with 100 slots: many short coroutines, and 2,000 that wait half a second."""
    worker = bench.start_worker(system, name="async", queue=ASYNC_QUEUE)
    bench.load(system, "short", size.jobs)
    relay = bench.start_relay()
    rate = drained(bench, [worker, relay], size.jobs)["jobs_per_s"]
    waiting = min(WAITING_JOBS, size.jobs)
    bench.stack.supervisor.stop("relay")
    bench.load(system, "waits", waiting)
    bench.start_relay()
    wait_for(bench, size.jobs + 1)
    first_at = time.monotonic()
    wait_for(bench, size.jobs + waiting)
    taken_s = time.monotonic() - first_at + WAITS_S
    return {"jobs_per_s": rate, "seconds": taken_s * WAITING_JOBS / waiting}


ALONE = {
    "http": Measure(http, [CELERIAC], once=True),
    "rescue": Measure(rescue, [CELERIAC], once=True),
    "idle": Measure(idle, [CELERIAC], once=True),
    "backlog": Measure(backlog, [CELERIAC], once=True),
    "history": Measure(history, [CELERIAC], once=True),
    "written": Measure(written, [CELERIAC], once=True),
    "memory": Measure(memory, [CELERIAC], once=True),
    "async": Measure(asynchronous, [CELERIAC], once=True),
}
