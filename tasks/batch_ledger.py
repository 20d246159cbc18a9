"""Changes of many jobs at once: how a batch is claimed, settled and given back.

Like those of ``ledger.py`` each is one conditional statement; it answers for the jobs that it
changed. A job is named by its fence, or by its dispatch number, which is claimed at most once.
Plans do not depend on statistics: rows are found by their ids, and nothing is joined to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from tasks.ledger import RETURNED, UNLOCKED, Claim
from tasks.sql import fetch, storable

# A job and its fence, or its dispatch number.
Named = tuple[UUID, int]


def named(number: str) -> str:
    """The condition for the rows of two arrays, ``ids`` and ``numbers``."""
    return (
        f"id = ANY(%(ids)s::uuid[])"
        f" AND {number} = (%(numbers)s::int[])[array_position(%(ids)s::uuid[], id)]"
    )


def arrays(jobs: Sequence[Named]) -> dict[str, list[object]]:
    return {"ids": [job[0] for job in jobs], "numbers": [job[1] for job in jobs]}


def claim(jobs: Sequence[Named], *, worker: str, release: str, lease_s: float) -> list[Claim]:
    """Take those that are dispatched under the number given, in that order.

    Waits for no lock: whoever keeps one of these rows is about to make this message stale, and if
    not, the job is sent again.
    """
    rows = fetch(
        "WITH free AS MATERIALIZED (SELECT id FROM tasks_job"
        f" WHERE {named('dispatch_no')} AND state = 'dispatched'"
        " AND (start_by IS NULL OR start_by >= clock_timestamp() OR started_at IS NOT NULL)"
        f" {UNLOCKED}),"
        " mine AS (UPDATE tasks_job SET state = 'running', fence = fence + 1, batched = true,"
        " dispatched_at = NULL, worker = %(worker)s, release = %(release)s,"
        " claimed_at = statement_timestamp(),"
        " started_at = coalesce(started_at, statement_timestamp()),"
        " lease_expires_at = clock_timestamp() + %(lease_s)s * interval '1 second'"
        " WHERE id = ANY(ARRAY(SELECT id FROM free))"
        " RETURNING id, fence, task, queue, tenant, coalesce(idempotency_key, former_key), payload,"
        " headers, attempts, crashes, priority, checkpoint,"
        " extract(epoch FROM clock_timestamp() - run_at)::float8, dispatch_no,"
        " %(lease_s)s::float8, ordering_key IS NOT NULL)"
        " SELECT * FROM mine ORDER BY array_position(%(ids)s::uuid[], id)",
        {**arrays(jobs), "worker": worker, "release": release, "lease_s": lease_s},
    )
    return [Claim(*row) for row in rows]


@dataclass(frozen=True)
class Success:
    """A run that ended well: ``began_ago_s`` and ``ended_ago_s`` before it is written."""

    id: UUID
    number: int  # its fence, or its dispatch number
    result: str
    note: str = ""
    began_ago_s: float = 0.0
    ended_ago_s: float = 0.0


def succeed(ended: Sequence[Success], *, by: str = "fence") -> set[UUID]:
    """Settle these runs; those that still owned their jobs.

    An attempt has the time of its own body: the claim was that of the whole batch.
    """
    position = "array_position(%(ids)s::uuid[], {id})"
    of_job = position.format(id="id")
    ago = "clock_timestamp() - (%({name})s::float8[])[{at}] * interval '1 second'"
    rows = fetch(
        "WITH mine AS (UPDATE tasks_job SET state = 'succeeded', lease_expires_at = NULL,"
        f" attempts = attempts + 1, result = ((%(results)s::text[])[{of_job}])::json,"
        f" result_note = (%(notes)s::text[])[{of_job}],"
        " error_type = '', error_message = '', error_traceback = '',"
        f" finished_at = clock_timestamp() WHERE {named(by)} AND state = 'running'"
        " RETURNING id, fence, attempts, worker, release, claimed_at)"
        " INSERT INTO tasks_attempt (job_id, fence, number, outcome, worker, release, started_at,"
        " finished_at, error_type, error_message, error_traceback)"
        " SELECT id, fence, attempts, 'succeeded', worker, release,"
        f" greatest(claimed_at, {ago.format(name='began', at=of_job)}),"
        f" greatest(claimed_at, {ago.format(name='over', at=of_job)}), '', '', ''"
        " FROM mine RETURNING job_id",
        {
            **arrays([(one.id, one.number) for one in ended]),
            "results": [one.result for one in ended],
            "notes": [one.note for one in ended],
            "began": [float(one.began_ago_s) for one in ended],
            "over": [float(one.ended_ago_s) for one in ended],
        },
    )
    return {row[0] for row in rows}


def give_back(jobs: Sequence[Named], *, by: str = "fence") -> set[UUID]:
    """Return what was claimed and has not started: as if nothing had been.

    Cancelled instead where that was asked for.
    """
    rows = fetch(
        "UPDATE tasks_job SET lease_expires_at = NULL, due = true,"
        f" started_at = nullif(started_at, claimed_at), {RETURNED},"
        " state = CASE WHEN cancel_requested_at IS NULL THEN 'queued' ELSE 'cancelled' END,"
        " finished_at = CASE WHEN cancel_requested_at IS NOT NULL THEN clock_timestamp() END"
        f" WHERE {named(by)} AND state = 'running' RETURNING id",
        arrays(jobs),
    )
    return {row[0] for row in rows}


def crash(jobs: Sequence[Named], *, reason: str, by: str = "dispatch_no") -> set[UUID]:
    """The process of these runs died, and who killed it is not known: each travels alone now.

    None of them becomes a dead letter by it.
    """
    rows = fetch(
        "UPDATE tasks_job SET crashes = crashes + 1, crashes_in_batch = crashes_in_batch + 1,"
        " lease_expires_at = NULL, due = true,"
        " state = CASE WHEN cancel_requested_at IS NULL THEN 'queued' ELSE 'cancelled' END,"
        " finished_at = CASE WHEN cancel_requested_at IS NOT NULL THEN clock_timestamp() END,"
        " error_type = 'WorkerLost', error_message = %(reason)s, error_traceback = ''"
        f" WHERE {named(by)} AND state = 'running' RETURNING id",
        {**arrays(jobs), "reason": storable(reason)},
    )
    return {row[0] for row in rows}


def unwanted(jobs: Sequence[Named], limit_name: str = "") -> tuple[set[UUID], bool]:
    """Of runs that have not started: those that somebody wants cancelled; and whether their
    downstream (the name of its limit) is paused or broken by now."""
    rows = fetch(
        f"SELECT id FROM tasks_job WHERE {named('fence')} AND cancel_requested_at IS NOT NULL",
        arrays(jobs),
    )
    stopped = bool(limit_name) and bool(
        fetch(
            "SELECT 1 FROM tasks_limit WHERE name = %s"
            " AND (paused_until > clock_timestamp() OR opened_at IS NOT NULL)",
            [limit_name],
        )
    )
    return {row[0] for row in rows}, stopped
