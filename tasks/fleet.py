"""Who is alive: relays and workers, as far as their rows tell."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from enum import StrEnum
from typing import Any
from uuid import UUID

from tasks.dispatch import Slots
from tasks.sql import execute, fetch, storable

# Seconds without a beat after which a process counts as gone: three beats of 5 s.
LIVE_FOR_S = 15
# Rows of one answer. Workers that are gone keep theirs for a day, and pods change their names.
WORKERS_MAX = 1000
RUNNING_MAX = 1000

# --- how much a queue can take ------------------------------------------------------------


def slots() -> dict[str, Slots]:
    """Per queue: the capacity of its live workers, and how much of it is free."""
    rows = fetch(
        "SELECT q, sum(capacity)::int, sum(greatest(capacity - busy, 0))::int"
        " FROM tasks_worker, jsonb_array_elements_text(queues) q"
        " WHERE stopped_at IS NULL AND NOT draining"
        " AND last_beat > clock_timestamp() - %s * interval '1 second' GROUP BY q",
        [LIVE_FOR_S],
    )
    return {queue: Slots(capacity, free) for queue, capacity, free in rows}


def releases() -> dict[str, Fleet]:
    """Of each release that is live: how many workers and relays. Two of them are a rollout."""
    rows = fetch(
        "SELECT release, count(*) FILTER (WHERE is_worker), count(*) FILTER (WHERE NOT is_worker)"
        " FROM (SELECT release, true AS is_worker, last_beat FROM tasks_worker"
        " WHERE stopped_at IS NULL"
        " UNION ALL SELECT release, false, last_beat FROM tasks_relay) AS members"
        " WHERE last_beat > clock_timestamp() - %s * interval '1 second' GROUP BY release",
        [LIVE_FOR_S],
    )
    return {release: Fleet(workers, relays) for release, workers, relays in rows}


@dataclass(frozen=True)
class Fleet:
    workers: int
    relays: int


# --- the workers --------------------------------------------------------------------------


class Life(StrEnum):
    """What a worker does, as far as its row tells."""

    LIVE = "live"
    DRAINING = "draining"  # takes nothing new
    STOPPED = "stopped"  # said goodbye
    LOST = "lost"  # has not beaten for LIVE_FOR_S


@dataclass(frozen=True)
class WorkerStatus:
    """One worker at this moment. ``busy`` is as of its last beat."""

    name: str
    queues: list[str]
    capacity: int
    busy: int
    release: str
    pid: int
    host: str
    last_beat_age_s: float
    state: Life


WORKER = (
    "SELECT name, ARRAY(SELECT jsonb_array_elements_text(queues)) AS queues, capacity, busy,"
    " release, pid, host,"
    " greatest(extract(epoch FROM clock_timestamp() - last_beat), 0)::float8 AS age_s,"
    " CASE WHEN stopped_at IS NOT NULL THEN 'stopped'"
    " WHEN last_beat <= clock_timestamp() - %s * interval '1 second' THEN 'lost'"
    " WHEN draining THEN 'draining' ELSE 'live' END AS state FROM tasks_worker"
)


def workers() -> list[WorkerStatus]:
    """Those at work first, by name; then those that are gone, the latest first."""
    rows = fetch(
        f"SELECT * FROM ({WORKER}) AS w ORDER BY state IN ('stopped', 'lost'),"  # noqa: S608
        " CASE WHEN state IN ('stopped', 'lost') THEN age_s END, name LIMIT %s",
        [LIVE_FOR_S, WORKERS_MAX],
    )
    return [status_of(row) for row in rows]


def worker(name: str) -> WorkerStatus | None:
    rows = fetch(f"{WORKER} WHERE name = %s", [LIVE_FOR_S, storable(name)])
    return status_of(rows[0]) if rows else None


def status_of(row: tuple[Any, ...]) -> WorkerStatus:
    values = (*row[:-1], Life(row[-1]))
    return WorkerStatus(*values)


def similar_names(name: str) -> list[str]:
    """What somebody may have meant who asked for a worker that is unknown."""
    return get_close_matches(name, [known.name for known in workers()], n=3, cutoff=0.4)


@dataclass(frozen=True)
class RunningJob:
    id: UUID
    task: str
    queue: str
    tenant: str
    since: datetime


@dataclass(frozen=True)
class Stop:
    """What stopping a worker now would interrupt."""

    worker: WorkerStatus
    running: list[RunningJob]

    @property
    def is_safe(self) -> bool:
        """No job runs there, and none that it has taken from the broker is about to."""
        is_gone = self.worker.state in (Life.STOPPED, Life.LOST)
        return not self.running and (is_gone or not self.worker.busy)


def stop_of(name: str) -> Stop | None:
    """None for a worker without a row. A live one may take a job in the very next moment: have
    it drain first, and what is safe stays safe."""
    rows = fetch(
        "SELECT id, task, queue, tenant, claimed_at FROM tasks_job"
        " WHERE state = 'running' AND worker = %s ORDER BY claimed_at LIMIT %s",
        [storable(name), RUNNING_MAX],
    )
    status = worker(name)
    return Stop(status, [RunningJob(*row) for row in rows]) if status else None


# --- the relays ---------------------------------------------------------------------------


def relay_beats(relay_id: UUID, host: str, pid: int, release: str) -> None:
    """Insert or renew a relay's row; rows of relays that died long ago go with it."""
    execute(
        "INSERT INTO tasks_relay (id, host, pid, release, sleeping, started_at, last_beat)"
        " VALUES (%s, %s, %s, %s, false, clock_timestamp(), clock_timestamp())"
        " ON CONFLICT (id) DO UPDATE SET last_beat = clock_timestamp()",
        [relay_id, host, pid, release],
    )
    execute("DELETE FROM tasks_relay WHERE last_beat < clock_timestamp() - interval '1 hour'", [])


def relay_sleeps(relay_id: UUID, sleeping: bool) -> None:
    """Not waited for on the disk: after a crash of the server the relay says it anew."""
    execute(
        "WITH hurry AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))"
        " UPDATE tasks_relay SET sleeping = %s FROM hurry WHERE id = %s",
        [sleeping, relay_id],
    )


def relay_leaves(relay_id: UUID) -> None:
    execute("DELETE FROM tasks_relay WHERE id = %s", [relay_id])
