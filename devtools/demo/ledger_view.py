"""What the ledger says about the demo's jobs, read past the product's own code."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import psycopg

Connection = psycopg.Connection[Any]
TERMINAL = ("succeeded", "failed", "cancelled")


@dataclass(frozen=True)
class JobSeen:
    """A row of the ledger at the end. ``pickup_s`` is from accepted to first started."""

    id: str
    key: str
    state: str
    runs: int
    retries: int
    pickup_s: float | None
    result: Any
    error: str

    @property
    def is_terminal(self) -> bool:
        return self.state in TERMINAL


@dataclass(frozen=True)
class Tally:
    """How far the demo has come."""

    accepted: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    retries: int = 0

    @property
    def finished(self) -> int:
        return self.succeeded + self.failed + self.cancelled


def count(connection: Connection, tenant: str) -> Tally:
    # Attempts of unfinished jobs have all been retries; the last one of a finished job was not.
    rows = connection.execute(
        "SELECT state, count(*), sum(attempts - (finished_at IS NOT NULL)::int)"
        " FROM tasks_job WHERE tenant = %s GROUP BY state",
        [tenant],
    ).fetchall()
    states = Counter({state: number for state, number, _ in rows})
    return Tally(
        accepted=states.total(),
        succeeded=states["succeeded"],
        failed=states["failed"],
        cancelled=states["cancelled"],
        retries=sum(int(retries) for _, _, retries in rows),
    )


def jobs_of(connection: Connection, tenant: str) -> list[JobSeen]:
    rows = connection.execute(
        "SELECT id::text, coalesce(idempotency_key, former_key), state, attempts,"
        " (SELECT count(*) FROM tasks_attempt a WHERE a.job_id = j.id AND a.outcome = 'retry'),"
        " extract(epoch FROM started_at - created_at)::float8, result, error_message"
        " FROM tasks_job j WHERE tenant = %s ORDER BY seq",
        [tenant],
    ).fetchall()
    return [JobSeen(*row) for row in rows]


def unfinished(connection: Connection) -> int:
    """Jobs of anybody that may still run: they would call the demo's bank."""
    row = connection.execute(
        "SELECT count(*) FROM tasks_job WHERE state IN ('queued', 'dispatched', 'running')"
    ).fetchone()
    return int(row[0]) if row else 0
