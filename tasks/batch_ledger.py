"""Changes of many jobs at once: how a batch is claimed, settled and given back.

Like those of ``ledger.py`` each is one conditional statement; it answers for the jobs that it
changed. A job is named by its fence, or by its dispatch number, which is claimed at most once.
None but the last flush waits for a lock: a row that somebody keeps costs its own job only.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from tasks.ledger import IS_DISPATCHED, IS_RUNNING, RETURNED, Claim
from tasks.sql import fetch, storable

# A job and its fence, or its dispatch number.
Named = tuple[UUID, int]

# One parameter, as JSON: arrays of ids and results would be converted element by element.
GIVEN = "WITH given AS MATERIALIZED (SELECT * FROM json_to_recordset(%s::json) AS g"
NAMED = f"{GIVEN}(id uuid, number int))"
# The ids as an array too: so the rows are found in the index, whatever the planner knows or does
# not know of the table.
OF_GIVEN = "j.id = given.id AND j.id = ANY(ARRAY(SELECT id FROM given))"
AND_RUNNING = f"AND j.{IS_RUNNING} AND j.{{number}} = given.number"
# The rows of these runs that nobody has locked.
FREE = (
    f"free AS MATERIALIZED (SELECT j.id AS free_id FROM tasks_job j JOIN given ON {OF_GIVEN}"
    f" {AND_RUNNING} FOR NO KEY UPDATE OF j {{skip}})"
)
IS_FREE = "j.id = ANY(ARRAY(SELECT free_id FROM free))"


def as_json(jobs: Sequence[Named]) -> str:
    return json.dumps([{"id": str(job_id), "number": number} for job_id, number in jobs])


def free(by: str, *, waits: bool = False) -> str:
    return FREE.format(number=by, skip="" if waits else "SKIP LOCKED")


def claim(jobs: Sequence[Named], *, worker: str, release: str, lease_s: float) -> list[Claim]:
    """Take those that are dispatched under the number given.

    Waits for no lock: whoever keeps one of these rows is about to make this message stale, and if
    not, the job is sent again.
    """
    rows = fetch(
        f"{NAMED}, free AS MATERIALIZED (SELECT j.id FROM tasks_job j JOIN given ON {OF_GIVEN}"
        f" WHERE j.dispatch_no = given.number AND j.{IS_DISPATCHED}"
        " AND (start_by IS NULL OR start_by >= clock_timestamp() OR started_at IS NOT NULL)"
        " FOR NO KEY UPDATE OF j SKIP LOCKED)"
        " UPDATE tasks_job SET state = 'running', fence = fence + 1, batched = true,"
        " dispatched_at = NULL, worker = %s, release = %s, claimed_at = statement_timestamp(),"
        " started_at = coalesce(started_at, statement_timestamp()),"
        " lease_expires_at = clock_timestamp() + %s * interval '1 second'"
        " WHERE id = ANY(ARRAY(SELECT id FROM free))"
        " RETURNING id, fence, task, queue, tenant, coalesce(idempotency_key, former_key), payload,"
        " headers, attempts, crashes, priority, checkpoint,"
        " extract(epoch FROM clock_timestamp() - run_at)::float8, dispatch_no, %s::float8,"
        " ordering_key IS NOT NULL",
        [as_json(jobs), worker, release, lease_s, lease_s],
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


SUCCESSES = (
    f"{GIVEN}(id uuid, number int, result text, note text, began_ago_s float8, ended_ago_s float8))"
)


def succeed(ended: Sequence[Success], *, by: str = "fence", waits: bool = False) -> set[UUID]:
    """Settle these runs; those that still owned their jobs. ``waits``: for rows that are locked.

    An attempt has the time of its own body: the claim was that of the whole batch. Counted from
    the moment at which the statement arrives, or what PostgreSQL takes for it would be added.
    """
    rows = fetch(
        f"{SUCCESSES}, {free(by, waits=waits)},"
        " mine AS (UPDATE tasks_job j SET state = 'succeeded',"
        " lease_expires_at = NULL, attempts = attempts + 1, result = given.result::json,"
        " result_note = given.note, error_type = '', error_message = '', error_traceback = '',"
        " finished_at = clock_timestamp()"
        f" FROM given WHERE j.id = given.id AND {IS_FREE}"
        " RETURNING j.id, fence, attempts, worker, release, claimed_at, began_ago_s, ended_ago_s)"
        " INSERT INTO tasks_attempt (job_id, fence, number, outcome, worker, release, started_at,"
        " finished_at, error_type, error_message, error_traceback)"
        " SELECT id, fence, attempts, 'succeeded', worker, release,"
        " greatest(claimed_at, statement_timestamp() - began_ago_s * interval '1 second'),"
        " greatest(claimed_at, statement_timestamp() - ended_ago_s * interval '1 second'),"
        " '', '', '' FROM mine RETURNING job_id",
        [json.dumps([{**vars(one), "id": str(one.id)} for one in ended])],
    )
    return {row[0] for row in rows}


def standing(runs: Sequence[Named]) -> dict[UUID, str]:
    """The states of those jobs that no other run has claimed since."""
    rows = fetch(
        f"{NAMED} SELECT j.id, state FROM tasks_job j JOIN given ON {OF_GIVEN}"
        " AND fence = given.number",
        [as_json(runs)],
    )
    return dict(rows)


def give_back(jobs: Sequence[Named], *, by: str = "fence") -> dict[UUID, str]:
    """Return what was claimed and has not started, as if nothing had been; the new states.

    Cancelled instead where that was asked for. Each travels alone the next time: it may be what
    nobody could wait for.
    """
    rows = fetch(
        f"{NAMED}, {free(by)} UPDATE tasks_job j SET lease_expires_at = NULL, due = true,"
        f" started_at = nullif(started_at, claimed_at), {RETURNED},"
        " state = CASE WHEN cancel_requested_at IS NULL THEN 'queued' ELSE 'cancelled' END,"
        " finished_at = CASE WHEN cancel_requested_at IS NOT NULL THEN clock_timestamp() END"
        f" WHERE {IS_FREE} RETURNING j.id, state",
        [as_json(jobs)],
    )
    return dict(rows)


def crash(jobs: Sequence[Named], *, reason: str) -> set[UUID]:
    """The process of these runs died, each named by its dispatch number.

    Which of them killed it is not known: each travels alone from now on, and none becomes a dead
    letter by this.
    """
    rows = fetch(
        f"{NAMED}, {free('dispatch_no')} UPDATE tasks_job j SET crashes = crashes + 1,"
        " crashes_in_batch = crashes_in_batch + 1, lease_expires_at = NULL, due = true,"
        " state = CASE WHEN cancel_requested_at IS NULL THEN 'queued' ELSE 'cancelled' END,"
        " finished_at = CASE WHEN cancel_requested_at IS NOT NULL THEN clock_timestamp() END,"
        " error_type = 'WorkerLost', error_message = %s, error_traceback = ''"
        f" WHERE {IS_FREE} RETURNING j.id",
        [as_json(jobs), storable(reason)],
    )
    return {row[0] for row in rows}


def cancelled_among(jobs: Sequence[Named]) -> set[UUID]:
    """Of runs that have not started: those that somebody wants cancelled."""
    rows = fetch(
        f"{NAMED} SELECT j.id FROM tasks_job j JOIN given ON {OF_GIVEN}"
        f" WHERE cancel_requested_at IS NOT NULL {AND_RUNNING.format(number='fence')}",
        [as_json(jobs)],
    )
    return {row[0] for row in rows}


def is_stopped(limit_name: str) -> bool:
    """Whether this downstream is paused, or its breaker open."""
    stopped = "paused_until > clock_timestamp() OR opened_at IS NOT NULL"
    return bool(fetch(f"SELECT 1 FROM tasks_limit WHERE name = %s AND ({stopped})", [limit_name]))
