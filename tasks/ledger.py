"""Every change of a job after it was accepted (``accept.py``), in the order of its life.

Each function is one conditional statement and returns whether it happened (or the row it
won). "Somebody else was faster" is a normal answer. The state, the dispatch number or the
fence in the WHERE clause decides, so no caller needs a lock. Times are the database's.

Callers own the transaction; without one, each statement commits by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import IntegrityError, OperationalError, connection, transaction
from psycopg.errors import LockNotAvailable, UniqueViolation

from tasks import turns
from tasks.errors import Rejected
from tasks.sql import LOCK_TIMEOUT_MS, execute, fetch, lock_timeout, set_lock_timeout, storable
from tasks.states import Action, Failure, Hold, State
from tasks.turns import Rounds, Waiting

ERROR_MESSAGE_MAX = 10_000  # characters
TRACEBACK_MAX = 50_000  # characters; the end is kept, it names the cause
HOLD_REASON_MAX = 200  # characters


# --- the relay: due, dispatched, lost, expired ------------------------------------------


@dataclass(frozen=True)
class Dispatched:
    """What goes to the broker for one job: identity and dispatch number, never a payload."""

    id: UUID
    task: str
    dispatch_no: int
    tenant: str = ""
    is_ordered: bool = False
    is_alone: bool = False  # its process died once, or a batch gave it back


DUE = f"WHERE {turns.DUE}"
# For rows that are named by id. Told in this way, PostgreSQL finds them by it: the partial index of
# a state looks tiny to the planner, and holds everything that has lately been in that state.
IS_QUEUED = "state || '' = 'queued'"
IS_DISPATCHED = "state || '' = 'dispatched'"
IS_RUNNING = "state || '' = 'running'"


# A bounded statement names its rows as ARRAY(SELECT ... LIMIT ... FOR UPDATE SKIP LOCKED), which is
# read once. Some plans of IN (SELECT ...) read it again for each row, and find others each time.


def stage_due(limit: int) -> int:
    """Move jobs whose ``run_at`` has come into the index of due work."""
    return execute(
        "UPDATE tasks_job SET due = true WHERE id = ANY(ARRAY("
        " SELECT id FROM tasks_job WHERE state = 'queued' AND NOT due"
        " AND run_at <= clock_timestamp() ORDER BY run_at LIMIT %s FOR UPDATE SKIP LOCKED))",
        [limit],
    )


def queues_with_due_jobs() -> list[str]:
    """Names of queues where something waits, by hopping from one to the next in the index."""
    rows = fetch(
        "WITH RECURSIVE found AS ("
        f" (SELECT queue FROM tasks_job {DUE} ORDER BY queue LIMIT 1) UNION ALL"
        f" SELECT (SELECT j.queue FROM tasks_job j {DUE} AND j.queue > found.queue"
        " ORDER BY j.queue LIMIT 1) FROM found WHERE found.queue IS NOT NULL)"
        " SELECT queue FROM found WHERE queue IS NOT NULL",
        [],
    )
    return [row[0] for row in rows]


def lanes_with_due_jobs() -> list[tuple[str, str]]:
    """Queue and lane of whatever waits, found in the same way."""
    return fetch(
        "WITH RECURSIVE found AS ("
        f" (SELECT queue, lane FROM tasks_job {DUE} ORDER BY queue, lane LIMIT 1) UNION ALL"
        f" SELECT next.* FROM found, LATERAL (SELECT queue, lane FROM tasks_job {DUE}"
        " AND (queue, lane) > (found.queue, found.lane) ORDER BY queue, lane LIMIT 1) AS next)"
        " SELECT queue, lane FROM found",
        [],
    )


def lock_limit(name: str, *, waits_for_disk: bool = True) -> None:
    """Until the transaction ends, no other relay decides about this limit.

    ``waits_for_disk`` False: a crash of the server may undo the transaction, though others have
    seen it. Raises OperationalError when a relay that froze keeps the limit.
    """
    hurry = "" if waits_for_disk else ", set_config('synchronous_commit', 'off', true)"
    fetch(
        f"WITH patience AS MATERIALIZED (SELECT set_config('lock_timeout', %s, true){hurry})"
        " SELECT pg_advisory_xact_lock(hashtextextended(%s, 1)) FROM patience",
        [str(LOCK_TIMEOUT_MS), name],
    )


def in_flight(queues: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Per queue: how many jobs are dispatched and how many run."""
    # One subquery per state: only so does each meet the condition of its partial index.
    rows = fetch(
        "SELECT q, (SELECT count(*) FROM tasks_job WHERE state = 'dispatched' AND queue = q),"
        " (SELECT count(*) FROM tasks_job WHERE state = 'running' AND queue = q)"
        " FROM unnest(%s::text[]) q",
        [list(queues)],
    )
    return {queue: (dispatched, running) for queue, dispatched, running in rows}


def dispatched_of_lane(queue: str, lane: str) -> int:
    rows = fetch(
        "SELECT count(*) FROM tasks_job WHERE state = 'dispatched' AND queue = %s AND lane = %s",
        [queue, lane],
    )
    return int(rows[0][0])


def waiting_tenants(
    queue: str,
    lane: str,
    after: str,
    most: int | None = None,
    *,
    limit: int = turns.TENANTS_AT_ONCE,
) -> list[Waiting]:
    """Tenants with due jobs, from the one behind ``after`` on and round again; of many, the first.

    ``most``: jobs in flight of a tenant that has no number of its own. ``limit``: how many jobs
    may go.
    """
    number = turns.tenants_at_once(limit)
    values = {"queue": queue, "lane": lane, "after": after, "most": most, "tenants": number}
    return [Waiting(*row) for row in fetch(turns.TENANTS, values)]


def in_flight_of_tenants(queue: str) -> dict[str, int]:
    rows = fetch(
        "SELECT tenant, count(*) FROM ("
        " SELECT tenant FROM tasks_job WHERE state = 'dispatched' AND queue = %s UNION ALL"
        " SELECT tenant FROM tasks_job WHERE state = 'running' AND queue = %s) AS in_flight"
        " GROUP BY tenant",
        [queue, queue],
    )
    return dict(rows)


def dispatch(
    queue: str,
    limit: int,
    *,
    lane: str = "",
    most: int | None = None,
    paused_tasks: Sequence[str] = (),
    rounds: Rounds | None = None,
) -> list[Dispatched]:
    """Mark up to ``limit`` due jobs of a queue as dispatched, in the order of ``turns``.

    ``most``: jobs of one tenant in flight. ``rounds``: what the tenants have had; it goes on.
    """
    rounds = rounds or Rounds()
    waiting = waiting_tenants(queue, lane, rounds.last, most, limit=limit)
    has_bounds = any(one.most is not None for one in waiting)
    busy = in_flight_of_tenants(queue) if has_bounds else {}
    found = turns.turns(waiting, busy, rounds, limit)
    if not found:
        if waiting:  # behind a hundred who may not, there may be others
            rounds.last = waiting[-1].tenant
        return []
    rows = fetch(
        # By array, so that no statistics ever make the planner read the whole table.
        f"{turns.chosen(found, limit, paused_tasks)}, free AS (SELECT id FROM tasks_job"
        f" WHERE id = ANY(ARRAY(SELECT id FROM chosen)) AND {turns.DUE} FOR UPDATE SKIP LOCKED),"
        " marked AS ("
        " UPDATE tasks_job SET state = 'dispatched', dispatch_no = dispatch_no + 1,"
        " dispatched_at = clock_timestamp() WHERE id = ANY(ARRAY(SELECT id FROM free))"
        " RETURNING id, task, dispatch_no, tenant, ordering_key IS NOT NULL,"
        " crashes > 0 OR batched AND returned_since IS NOT NULL)"
        " SELECT marked.* FROM marked JOIN chosen USING (id) ORDER BY turn, place",
        turns.parameters(queue, lane, found, paused_tasks),
    )
    jobs = [Dispatched(*row) for row in rows]
    rounds.serve([job.tenant for job in jobs], {one.tenant: one.weight for one in found})
    if not jobs:  # they were locked, or paused, or behind others of their key
        rounds.last = waiting[-1].tenant
    return jobs


def dispatch_again(queue: str, lost_after_s: float, limit: int) -> list[Dispatched]:
    """Mark jobs whose message must be lost once more; their old messages become stale."""
    rows = fetch(
        "UPDATE tasks_job SET dispatch_no = dispatch_no + 1, dispatched_at = clock_timestamp()"
        " WHERE id = ANY(ARRAY(SELECT id FROM tasks_job WHERE state = 'dispatched' AND queue = %s"
        " AND dispatched_at < clock_timestamp() - %s * interval '1 second'"
        " ORDER BY dispatched_at LIMIT %s FOR UPDATE SKIP LOCKED))"
        " RETURNING id, task, dispatch_no",
        [queue, lost_after_s, limit],
    )
    return [Dispatched(*row) for row in rows]


def dispatch_here(job_id: UUID) -> int:
    """Mark one queued job as dispatched to the caller itself; its dispatch number.

    0, which no claim accepts, when it is not queued, or held.
    """
    rows = fetch(
        "UPDATE tasks_job SET state = 'dispatched', dispatch_no = dispatch_no + 1, due = true,"
        f" dispatched_at = clock_timestamp() WHERE id = %s AND {IS_QUEUED}"
        " AND hold_reason = '' RETURNING dispatch_no",
        [job_id],
    )
    return rows[0][0] if rows else 0


def undispatch(jobs: Iterable[Dispatched]) -> int:
    """Return jobs whose message was not sent. Locked ones are sent again as lost, later."""
    pairs = [(job.id, job.dispatch_no) for job in jobs]
    return execute(
        "UPDATE tasks_job SET state = 'queued', dispatched_at = NULL WHERE id IN ("
        " SELECT j.id FROM tasks_job j"
        " JOIN unnest(%s::uuid[], %s::int[]) AS given(id, dispatch_no)"
        " ON j.id = given.id AND j.dispatch_no = given.dispatch_no"
        f" WHERE j.{IS_DISPATCHED} FOR NO KEY UPDATE OF j SKIP LOCKED)",
        [[p[0] for p in pairs], [p[1] for p in pairs]],
    )


def recall(
    queues: Sequence[str], limit: int, *, tasks: Sequence[str] = (), tenants: Sequence[str] = ()
) -> int:
    """Take back what was sent and has not started: of these queues, tasks or tenants.

    The messages become stale, the place in the order stays. A row that a claim has locked is
    left to it.
    """
    return execute(
        "UPDATE tasks_job SET state = 'queued', dispatched_at = NULL"
        " WHERE id = ANY(ARRAY(SELECT id FROM tasks_job WHERE state = 'dispatched'"
        " AND (queue = ANY(%s) OR task = ANY(%s) OR tenant = ANY(%s))"
        " LIMIT %s FOR NO KEY UPDATE SKIP LOCKED)) AND state = 'dispatched'",
        [list(queues), list(tasks), list(tenants), limit],
    )


def expire(limit: int) -> list[tuple[UUID, str]]:
    """Fail what nobody needs any more: ``start_by`` passed before the first start."""
    return fetch(
        "UPDATE tasks_job SET state = 'failed', failure = 'expired', dead_letter = true,"
        " error_type = 'Expired', error_message = 'start_by passed before the first start',"
        " dispatched_at = NULL, hold_reason = '', finished_at = clock_timestamp()"
        " WHERE id = ANY(ARRAY(SELECT id FROM tasks_job WHERE state IN ('queued', 'dispatched')"
        " AND start_by < clock_timestamp() AND started_at IS NULL"
        " ORDER BY start_by LIMIT %s FOR UPDATE SKIP LOCKED))"
        " RETURNING id, queue",
        [limit],
    )


# --- held: what must not run now, for a reason of its own ---------------------------------


# A job that is accepted, retried or replayed starts anew. Not ``run_at``: a job that waited for
# longer than that in a backlog, or was paused, must not fail at its first give-back.
RETURNED = "returned_since = coalesce(returned_since, clock_timestamp())"


def hold_unknown(job_id: UUID, dispatch_no: int) -> bool:
    """A worker got a message for a task it does not know."""
    return bool(
        execute(
            "UPDATE tasks_job SET state = 'queued', dispatched_at = NULL, hold_reason = %s,"
            f" held_at = clock_timestamp(), {RETURNED}"
            f" WHERE id = %s AND dispatch_no = %s AND {IS_DISPATCHED}",
            [Hold.TASK_UNKNOWN, job_id, dispatch_no],
        )
    )


def hold_unread(job_id: UUID, dispatch_no: int, *, release: str, problem: str) -> bool:
    """A worker got a message that only another release can read: ``release`` is its own."""
    return bool(
        execute(
            "UPDATE tasks_job SET state = 'queued', dispatched_at = NULL, hold_reason = %s,"
            f" release = %s, held_at = clock_timestamp(), {RETURNED}"
            " WHERE id = %s AND dispatch_no = %s AND state = 'dispatched'",
            [refusal(problem), release, job_id, dispatch_no],
        )
    )


def refusal(problem: str) -> str:
    """Why this release cannot run a job: it is held until there is another one."""
    return storable(f"{Hold.INCOMPATIBLE}: {problem}")[:HOLD_REASON_MAX]


def hold_incompatible(job_id: UUID, fence: int, *, problem: str) -> bool:
    """Return a run whose payload does not fit the task of this release; it costs nothing.

    ``release`` stays that of the claim: the one that refuses. A first run has not started.
    """
    return bool(
        execute(
            "UPDATE tasks_job SET"
            " state = CASE WHEN cancel_requested_at IS NULL THEN 'queued' ELSE 'cancelled' END,"
            " finished_at = CASE WHEN cancel_requested_at IS NULL THEN NULL"
            " ELSE clock_timestamp() END,"
            " hold_reason = CASE WHEN cancel_requested_at IS NULL THEN %s ELSE '' END,"
            f" held_at = clock_timestamp(), {RETURNED}, lease_expires_at = NULL,"
            f" started_at = nullif(started_at, claimed_at){OF_MINE}",
            [refusal(problem), job_id, fence],
        )
    )


HELD_BY_REASON = "state = 'queued' AND hold_reason"
UNKNOWN = f"{HELD_BY_REASON} = '{Hold.TASK_UNKNOWN}'"
INCOMPATIBLE = f"{HELD_BY_REASON} LIKE '{Hold.INCOMPATIBLE}%%'"


def kinds_of(held: str, column: str) -> str:
    """Every pair of queue and ``column`` among what is held, by hopping through its index."""
    first = f"SELECT queue, {column} AS kind FROM tasks_job WHERE {held}"
    order = f"ORDER BY queue, {column} LIMIT 1"
    return (
        f"WITH RECURSIVE kinds AS (({first} {order}) UNION ALL SELECT next.* FROM kinds k,"
        f" LATERAL ({first} AND (queue, {column}) > (k.queue, k.kind) {order}) AS next),"
    )


def queues_with_held_jobs() -> list[str]:
    """Names of queues where something that came back is on hold, by hopping."""
    held = "FROM tasks_job j WHERE state = 'queued' AND returned_since IS NOT NULL"
    held += " AND hold_reason <> ''"
    rows = fetch(
        "WITH RECURSIVE found AS ("
        f" (SELECT queue {held} ORDER BY queue LIMIT 1) UNION ALL"
        f" SELECT (SELECT j.queue {held} AND j.queue > found.queue ORDER BY j.queue LIMIT 1)"
        " FROM found WHERE found.queue IS NOT NULL)"
        " SELECT queue FROM found WHERE queue IS NOT NULL",
        [],
    )
    return [row[0] for row in rows]


def give_up_held(queue: str, after_s: float, limit: int) -> list[UUID]:
    """Fail what no worker could run for that long. What an operator paused is left alone."""
    rows = fetch(
        "UPDATE tasks_job SET state = 'failed', failure = %s, dead_letter = true,"
        " error_type = 'GaveUp', error_message = 'on hold: ' || hold_reason, error_traceback = '',"
        " hold_reason = '', finished_at = clock_timestamp()"
        " WHERE id = ANY(ARRAY(SELECT id FROM tasks_job WHERE queue = %s AND state = 'queued'"
        f" AND hold_reason <> '' AND (hold_reason = '{Hold.TASK_UNKNOWN}'"
        f" OR hold_reason LIKE '{Hold.INCOMPATIBLE}%%')"
        " AND returned_since < statement_timestamp() - %s * interval '1 second'"
        " ORDER BY returned_since LIMIT %s FOR UPDATE SKIP LOCKED)) RETURNING id",
        [Failure.GAVE_UP, queue, after_s, limit],
    )
    return [row[0] for row in rows]


# --- a worker: claim, then settle with the fence of that claim ---------------------------


@dataclass(frozen=True)
class Claim:
    """A run that this worker owns until its lease ends."""

    id: UUID
    fence: int
    task: str
    queue: str
    tenant: str
    key: str
    payload: Any
    headers: dict[str, Any] | None
    attempts: int
    crashes: int
    priority: int
    checkpoint: Any
    waited_s: float
    dispatch_no: int = 0
    lease_s: float = 0.0
    is_ordered: bool = False


def claim(
    job_id: UUID, dispatch_no: int, *, worker: str, release: str, lease_s: float
) -> Claim | None:
    """Take a dispatched job. None: a repeat, a stale message, or a job that was cancelled.

    A dispatch number is claimed at most once, so a redelivered message never runs twice.
    """
    rows = fetch(
        "UPDATE tasks_job SET state = 'running', fence = fence + 1, dispatched_at = NULL,"
        " batched = false,"
        # One moment for both: ``hold_incompatible`` tells by it whether this is the first run.
        " worker = %s, release = %s, claimed_at = statement_timestamp(),"
        " started_at = coalesce(started_at, statement_timestamp()),"
        " lease_expires_at = clock_timestamp() + %s * interval '1 second'"
        f" WHERE id = %s AND {IS_DISPATCHED} AND dispatch_no = %s"
        " AND (start_by IS NULL OR start_by >= clock_timestamp() OR started_at IS NOT NULL)"
        " RETURNING id, fence, task, queue, tenant, coalesce(idempotency_key, former_key), payload,"
        " headers, attempts, crashes, priority, checkpoint,"
        " extract(epoch FROM clock_timestamp() - run_at)::float8, dispatch_no, %s::float8,"
        " ordering_key IS NOT NULL",
        [worker, release, lease_s, job_id, dispatch_no, lease_s],
    )
    return Claim(*rows[0]) if rows else None


# --- while it runs: every write carries the fence ----------------------------------------


def checkpoint(job_id: UUID, fence: int, data: str) -> bool:
    return bool(
        execute(f"UPDATE tasks_job SET checkpoint = %s::json{OF_MINE}", [data, job_id, fence])
    )


def progress(job_id: UUID, fence: int, data: str) -> bool:
    return bool(
        execute(f"UPDATE tasks_job SET progress = %s::json{OF_MINE}", [data, job_id, fence])
    )


# Locks the row against whoever would take the job away, until the write beside it is done.
HELD_BY_ME = (
    "WITH mine AS MATERIALIZED (SELECT id FROM tasks_job"
    f" WHERE id = %s AND {IS_RUNNING} AND fence = %s FOR SHARE)"
)


def emit(job_id: UUID, fence: int, seq: int, data: str) -> bool:
    """True as well when an earlier run emitted this ``seq``; its data stays."""
    rows = fetch(
        f"{HELD_BY_ME}, written AS (INSERT INTO tasks_output (job_id, seq, data, at)"
        " SELECT id, %s, %s::json, clock_timestamp() FROM mine ON CONFLICT DO NOTHING)"
        " SELECT 1 FROM mine",
        [job_id, fence, seq, data],
    )
    return bool(rows)


@dataclass(frozen=True)
class Begun:
    """A step as this run finds it. Neither done nor ambiguous: it has just begun."""

    is_done: bool
    is_ambiguous: bool
    result: Any


def begin_step(job_id: UUID, fence: int, name: str) -> Begun | None:
    """Record that the step begins, or find what is known of it. None: the job is not ours."""
    rows = fetch(
        f"{HELD_BY_ME}, known AS (SELECT done_at, result FROM tasks_step"
        " WHERE job_id = %s AND name = %s),"
        " begun AS (INSERT INTO tasks_step (job_id, name, fence, begun_at)"
        " SELECT id, %s, %s, clock_timestamp() FROM mine ON CONFLICT DO NOTHING)"
        " SELECT known.done_at IS NOT NULL, EXISTS (SELECT FROM known), known.result"
        " FROM mine LEFT JOIN known ON true",
        [job_id, fence, job_id, name, name, fence],
    )
    if not rows:
        return None
    is_done, is_known, result = rows[0]
    return Begun(is_done, is_known and not is_done, result)


def end_step(job_id: UUID, fence: int, name: str, result: str) -> bool:
    """True as well when this very run ended it before, and did not hear the answer."""
    rows = fetch(
        f"{HELD_BY_ME} UPDATE tasks_step s SET done_at = clock_timestamp(), fence = %s,"
        " result = %s::json FROM mine WHERE s.job_id = mine.id AND s.name = %s"
        " AND (s.done_at IS NULL OR s.fence = %s) RETURNING 1",
        [job_id, fence, fence, result, name, fence],
    )
    return bool(rows)


# --- settle -------------------------------------------------------------------------------


# An ending run and its attempt are one statement. `mine` is empty for a stale fence.
ATTEMPT = (
    " INSERT INTO tasks_attempt (job_id, fence, number, outcome, worker, release, started_at,"
    " finished_at, error_type, error_message, error_traceback)"
    " SELECT id, fence, attempts, %s, worker, release, claimed_at, clock_timestamp(), %s, %s, %s"
    " FROM mine RETURNING (SELECT state FROM mine)"
)
OF_MINE = f" WHERE id = %s AND {IS_RUNNING} AND fence = %s"
MINE = " RETURNING id, fence, attempts, worker, release, claimed_at, state"


def succeed(job_id: UUID, fence: int, *, result: str | None, note: str = "") -> bool:
    return bool(
        fetch(
            "WITH mine AS (UPDATE tasks_job SET state = 'succeeded', lease_expires_at = NULL,"
            " attempts = attempts + 1, result = %s::json, result_note = %s,"
            " error_type = '', error_message = '', error_traceback = '',"
            f" finished_at = clock_timestamp(){OF_MINE}{MINE}){ATTEMPT}",
            [result, note, job_id, fence, "succeeded", "", "", ""],
        )
    )


@dataclass(frozen=True)
class ErrorReport:
    """What went wrong in a run, fit to be stored."""

    type: str
    message: str
    traceback: str

    @classmethod
    def of(cls, error_type: str, message: str, traceback: str = "") -> ErrorReport:
        return cls(
            error_type[:255],
            storable(message)[:ERROR_MESSAGE_MAX],
            storable(traceback)[-TRACEBACK_MAX:],
        )


def retry(job_id: UUID, fence: int, *, delay_s: float, error: ErrorReport) -> bool:
    """Queue the job again for later; cancelled instead when that was asked for."""
    return bool(
        fetch(
            "WITH mine AS (UPDATE tasks_job SET"
            " state = CASE WHEN cancel_requested_at IS NULL THEN 'queued' ELSE 'cancelled' END,"
            " finished_at = CASE WHEN cancel_requested_at IS NULL THEN NULL"
            " ELSE clock_timestamp() END,"
            " lease_expires_at = NULL, attempts = attempts + 1, due = %s <= 0,"
            " returned_since = NULL,"
            " run_at = clock_timestamp() + %s * interval '1 second',"
            f" error_type = %s, error_message = %s, error_traceback = %s{OF_MINE}{MINE}){ATTEMPT}",
            [
                delay_s, delay_s, error.type, error.message, error.traceback, job_id, fence,
                "retry", error.type, error.message, error.traceback,
            ],
        )
    )  # fmt: skip


def fail(
    job_id: UUID, fence: int, *, failure: Failure, error: ErrorReport, dead_letter: bool = True
) -> bool:
    return bool(
        fetch(
            "WITH mine AS (UPDATE tasks_job SET state = 'failed', lease_expires_at = NULL,"
            " attempts = attempts + 1, failure = %s, dead_letter = %s, error_type = %s,"
            " error_message = %s, error_traceback = %s,"
            f" finished_at = clock_timestamp(){OF_MINE}{MINE}){ATTEMPT}",
            [
                failure, dead_letter, error.type, error.message, error.traceback, job_id, fence,
                "failed", error.type, error.message, error.traceback,
            ],
        )
    )  # fmt: skip


def end_cancelled(job_id: UUID, fence: int, *, reason: str = "") -> bool:
    """The body stopped because it was asked to, or said itself that it is not needed."""
    return bool(
        fetch(
            "WITH mine AS (UPDATE tasks_job SET state = 'cancelled', lease_expires_at = NULL,"
            " attempts = attempts + 1, cancel_reason = coalesce(nullif(cancel_reason, ''), %s),"
            f" finished_at = clock_timestamp(){OF_MINE}{MINE}){ATTEMPT}",
            [storable(reason)[:500], job_id, fence, "cancelled", "", "", ""],
        )
    )


def give_back(
    job_id: UUID, fence: int, *, delay_s: float = 0.0, give_up_after_s: float | None = None
) -> str | None:
    """Return a run unfinished (snooze, drain): it costs nothing and leaves no attempt.

    The new state: failed when it has come back like this for ``give_up_after_s``; None when the
    run no longer owns the job.
    """
    rows = fetch(
        "UPDATE tasks_job SET lease_expires_at = NULL, due = %(delay)s <= 0,"
        " run_at = clock_timestamp() + %(delay)s * interval '1 second',"
        f" {RETURNED}, state = CASE WHEN cancel_requested_at IS NOT NULL THEN 'cancelled'"
        f" WHEN {TOO_OFTEN} THEN 'failed' ELSE 'queued' END,"
        f" finished_at = CASE WHEN cancel_requested_at IS NOT NULL OR {TOO_OFTEN}"
        " THEN clock_timestamp() END,"
        f" failure = CASE WHEN {GIVES_UP} THEN %(gave_up)s ELSE '' END, dead_letter = {GIVES_UP},"
        f" error_type = CASE WHEN {GIVES_UP} THEN 'GaveUp' ELSE error_type END,"
        f" error_message = CASE WHEN {GIVES_UP} THEN 'given back without an attempt since '"
        " || returned_since ELSE error_message END,"
        f" error_traceback = CASE WHEN {GIVES_UP} THEN '' ELSE error_traceback END"
        f" WHERE id = %(id)s AND {IS_RUNNING} AND fence = %(fence)s RETURNING state",
        {
            "delay": delay_s, "after": give_up_after_s, "gave_up": Failure.GAVE_UP,
            "id": job_id, "fence": fence,
        },
    )  # fmt: skip
    return rows[0][0] if rows else None


# One moment for the whole statement, or its columns would contradict each other.
TOO_OFTEN = (
    "coalesce(returned_since < statement_timestamp() - %(after)s::float8 * interval '1 second',"
    " false)"
)
GIVES_UP = f"(cancel_requested_at IS NULL AND {TOO_OFTEN})"


@dataclass(frozen=True)
class Ownership:
    """What a run that still owns its job learns when it looks."""

    cancel_requested: bool


def look(job_id: UUID, fence: int) -> Ownership | None:
    """None: this run no longer owns the job."""
    rows = fetch(f"SELECT cancel_requested_at IS NOT NULL FROM tasks_job{OF_MINE}", [job_id, fence])
    return Ownership(rows[0][0]) if rows else None


# A body or a web request may keep a row locked for as long as its transaction lasts.
UNLOCKED = "FOR NO KEY UPDATE SKIP LOCKED"


@dataclass(frozen=True)
class Kept:
    """A run that still owns its job. ``renewed``: False when its row is locked by somebody."""

    cancel_requested: bool
    renewed: bool


def renew(runs: Sequence[tuple[UUID, int, float]]) -> dict[UUID, Kept]:
    """Renew the leases of these runs, each a job, its dispatch number and the lease in seconds.

    Answers for those that still own their job. Waits for no lock: a locked row keeps its lease,
    and nobody rescues it either. An expired lease that nobody rescued lives again.
    """
    if not runs:
        return {}
    rows = fetch(
        "WITH mine AS MATERIALIZED (SELECT j.id, given.lease_s, cancel_requested_at"
        " FROM tasks_job j JOIN unnest(%s::uuid[], %s::int[], %s::float8[])"
        " AS given(id, dispatch_no, lease_s)"
        f" ON j.id = given.id AND j.dispatch_no = given.dispatch_no WHERE j.{IS_RUNNING}),"
        " free AS MATERIALIZED (SELECT id FROM tasks_job WHERE id IN (SELECT id FROM mine)"
        f" AND {IS_RUNNING} {UNLOCKED}),"
        " renewed AS (UPDATE tasks_job j"
        " SET lease_expires_at = clock_timestamp() + mine.lease_s * interval '1 second'"
        " FROM mine JOIN free USING (id) WHERE j.id = mine.id RETURNING j.id)"
        " SELECT mine.id, mine.cancel_requested_at IS NOT NULL, renewed.id IS NOT NULL"
        " FROM mine LEFT JOIN renewed USING (id)",
        [[run[0] for run in runs], [run[1] for run in runs], [run[2] for run in runs]],
    )
    return {job_id: Kept(cancelled, renewed) for job_id, cancelled, renewed in rows}


@dataclass(frozen=True)
class Expired:
    """A run whose lease has run out."""

    id: UUID
    fence: int
    task: str
    queue: str
    worker: str


def expired_leases(limit: int) -> list[Expired]:
    """Oldest first, without those whose row is locked. Only a look: ``crash`` decides."""
    rows = fetch(
        "SELECT id, fence, task, queue, worker FROM tasks_job WHERE state = 'running'"
        " AND lease_expires_at < clock_timestamp() ORDER BY lease_expires_at LIMIT %s"
        f" {UNLOCKED}",
        [limit],
    )
    return [Expired(*row) for row in rows]


def crash(
    job_id: UUID, fence: int, *, max_crashes: int, reason: str, expired_only: bool = False
) -> str | None:
    """The process of a run died: queued again, or a dead letter at ``max_crashes``.

    Of a run in a batch nobody knows whether it was to blame: that crash is counted apart.
    The new state; None when the run had settled or (``expired_only``) renewed before, or
    somebody else saw it first.
    """
    # Whoever rescues must not stop at a row that somebody keeps locked. A pool's parent waits:
    # its dead child's transaction is about to be rolled back.
    skip = f" AND id IN (SELECT id FROM tasks_job{OF_MINE} {UNLOCKED})" if expired_only else ""
    again = [job_id, fence] if expired_only else []
    rows = fetch(
        "UPDATE tasks_job SET crashes = crashes + 1, lease_expires_at = NULL, due = true,"
        " crashes_in_batch = crashes_in_batch + batched::int,"
        " state = CASE WHEN cancel_requested_at IS NOT NULL THEN 'cancelled'"
        f" WHEN {POISONOUS} THEN 'failed' ELSE 'queued' END,"
        f" failure = CASE WHEN cancel_requested_at IS NULL AND {POISONOUS} THEN %s"
        " ELSE '' END,"
        f" dead_letter = cancel_requested_at IS NULL AND {POISONOUS},"
        " error_type = 'WorkerLost', error_message = %s, error_traceback = '',"
        f" finished_at = CASE WHEN cancel_requested_at IS NOT NULL OR {POISONOUS}"
        f" THEN clock_timestamp() END{OF_MINE}"
        f" AND (NOT %s OR lease_expires_at < clock_timestamp()){skip} RETURNING state",
        [
            max_crashes, max_crashes, Failure.AMBIGUOUS if max_crashes == 1 else Failure.POISON,
            max_crashes, storable(reason), max_crashes, job_id, fence, expired_only, *again,
        ],
    )  # fmt: skip
    return rows[0][0] if rows else None


# Only what it suffered alone says that it is the job which kills.
POISONOUS = "(NOT batched AND crashes + 1 - crashes_in_batch >= %s)"


def fence_of_dispatch(job_id: UUID, dispatch_no: int) -> int | None:
    """The fence of the run that claimed this dispatch, while it runs.

    A pool's parent knows the message, not the claim of its child; the two are one to one.
    """
    rows = fetch(
        f"SELECT fence FROM tasks_job WHERE id = %s AND dispatch_no = %s AND {IS_RUNNING}",
        [job_id, dispatch_no],
    )
    return rows[0][0] if rows else None


# --- callers and operators ---------------------------------------------------------------


# Who has been asked to stop is not asked again: the first reason stays.
CANCELLED = (
    "UPDATE tasks_job j SET"
    " state = CASE WHEN j.state = 'running' THEN j.state ELSE 'cancelled' END,"
    " finished_at = CASE WHEN j.state = 'running' THEN NULL ELSE clock_timestamp() END,"
    " dispatched_at = NULL, hold_reason = '',"
    " cancel_requested_at = coalesce(cancel_requested_at, clock_timestamp()),"
    " cancel_reason = CASE WHEN cancel_requested_at IS NULL THEN %s ELSE cancel_reason END"
)


def cancel(job_id: UUID, *, actor: str, reason: str = "") -> str | None:
    """Cancel at once what waits, ask what runs to stop. The new state; None when terminal.

    Raises Rejected when the row stays locked: most likely its own run has it in a transaction.
    """
    reason = storable(reason)[:500]
    with waiting_for_a_lock():
        rows = fetch(
            "WITH patience AS MATERIALIZED (SELECT set_config('lock_timeout', %s, true)),"
            f" mine AS ({CANCELLED} FROM patience"
            " WHERE id = %s AND state IN ('queued', 'dispatched', 'running')"
            f" RETURNING id, state){RECORD_ACTION}",
            [str(LOCK_TIMEOUT_MS), reason, job_id, Action.CANCEL, storable(actor), reason],
        )
    return rows[0][0] if rows else None


@contextmanager
def waiting_for_a_lock() -> Iterator[None]:
    """For one statement that sets its lock timeout. The transaction around stays as it was."""
    try:
        if connection.in_atomic_block:
            with transaction.atomic():
                before = lock_timeout()
                yield
                set_lock_timeout(before)
        else:
            yield
    except OperationalError as exc:
        if isinstance(exc.__cause__, LockNotAvailable):
            raise Rejected("the job is locked by an open transaction") from exc
        raise


@dataclass(frozen=True)
class Selection:
    """Unfinished jobs that somebody means, by what they have in common. None: any."""

    task: str | None = None
    queue: str | None = None
    tenant: str | None = None
    ordering_key: str | None = None
    state: str | None = None
    created_before: datetime | None = None

    @property
    def where(self) -> tuple[str, list[Any]]:
        """What is asked to stop already is not meant again."""
        columns = ("task", "queue", "tenant", "ordering_key", "state")
        given = {name: getattr(self, name) for name in columns}
        conditions = [f"{name} = %s" for name, value in given.items() if value is not None]
        values = [value for value in given.values() if value is not None]
        if self.created_before is not None:
            conditions.append("created_at < %s")
            values.append(self.created_before)
        return " AND ".join(["cancel_requested_at IS NULL", *conditions]), values


# Each has a partial index, so that finished jobs cost nothing.
UNFINISHED_PARTS = (
    "state = 'queued' AND due AND hold_reason = ''",
    "state = 'queued' AND NOT due AND hold_reason = ''",
    "state = 'queued' AND NOT (hold_reason = '')",
    "state = 'dispatched'",
    "state = 'running'",
)


@dataclass(frozen=True)
class CancelledMany:
    """``asked``: those that run have been asked to stop."""

    cancelled: int = 0
    asked: int = 0

    def __add__(self, other: CancelledMany) -> CancelledMany:
        return CancelledMany(self.cancelled + other.cancelled, self.asked + other.asked)

    @property
    def total(self) -> int:
        return self.cancelled + self.asked


def cancel_some(selection: Selection, limit: int, *, actor: str, reason: str = "") -> CancelledMany:
    """Cancel up to ``limit`` of them in one statement; rows that are locked are left out."""
    where, values = selection.where
    parts = ", ".join(
        f"part{number} AS (SELECT id FROM tasks_job WHERE {part} AND {where} LIMIT %s {UNLOCKED})"
        for number, part in enumerate(UNFINISHED_PARTS)
    )
    # Taken lazily, part by part: no more rows are locked than are changed.
    taken = " UNION ALL ".join(f"SELECT id FROM part{n}" for n in range(len(UNFINISHED_PARTS)))
    reason = storable(reason)[:500]
    rows = fetch(
        f"WITH {parts}, taken AS MATERIALIZED ({taken} LIMIT %s),"
        f" mine AS ({CANCELLED} FROM taken WHERE j.id = taken.id RETURNING j.id, j.state),"
        " recorded AS (INSERT INTO tasks_operatoraction (job_id, action, actor, reason, at)"
        " SELECT id, %s, %s, %s, clock_timestamp() FROM mine)"
        " SELECT count(*) FILTER (WHERE state = 'cancelled'),"
        " count(*) FILTER (WHERE state = 'running') FROM mine",
        [
            *[*values, limit] * len(UNFINISHED_PARTS), limit, reason,
            Action.CANCEL, storable(actor), reason,
        ],
    )  # fmt: skip
    return CancelledMany(*rows[0])


def is_any_left(selection: Selection) -> bool:
    where, values = selection.where
    parts = " OR ".join(
        f"EXISTS (SELECT FROM tasks_job WHERE {part} AND {where})" for part in UNFINISHED_PARTS
    )
    return bool(fetch(f"SELECT {parts}", values * len(UNFINISHED_PARTS))[0][0])


def count_selected(selection: Selection) -> int:
    where, values = selection.where
    parts = " + ".join(
        f"(SELECT count(*) FROM tasks_job WHERE {part} AND {where})" for part in UNFINISHED_PARTS
    )
    return int(fetch(f"SELECT {parts}", values * len(UNFINISHED_PARTS))[0][0])


def replay(job_id: UUID, *, actor: str, reason: str) -> bool:
    """Queue a failed job again: same id, key and payload; counters from zero.

    False when it is not failed, or when a younger job owns its key by now.
    """
    try:
        with transaction.atomic():
            return replay_unless_owned(job_id, actor=actor, reason=reason)
    except IntegrityError as exc:
        if isinstance(exc.__cause__, UniqueViolation):  # it took the key at this very moment
            return False
        raise


def replay_unless_owned(job_id: UUID, *, actor: str, reason: str) -> bool:
    return bool(
        fetch(
            "WITH mine AS (UPDATE tasks_job j SET state = 'queued', attempts = 0, crashes = 0,"
            " crashes_in_batch = 0, failure = '', dead_letter = false, finished_at = NULL,"
            # The attempts keep it; here it would look like that of the runs to come.
            " error_type = '', error_message = '', error_traceback = '', due = true,"
            " run_at = clock_timestamp(), start_by = NULL, cancel_requested_at = NULL,"
            " returned_since = NULL, seq = nextval('tasks_job_seq'),"
            # At the tail of its key.
            " hold_reason = CASE WHEN EXISTS (SELECT FROM tasks_job o WHERE o.queue = j.queue"
            " AND o.tenant = j.tenant AND o.ordering_key = j.ordering_key"
            f" AND o.state IN ('queued', 'dispatched', 'running')) THEN '{Hold.ORDER}' ELSE '' END,"
            " idempotency_key = coalesce(idempotency_key, former_key), former_key = NULL"
            " WHERE id = %s AND state = 'failed' AND (idempotency_key IS NOT NULL OR NOT EXISTS ("
            " SELECT 1 FROM tasks_job o WHERE o.tenant = j.tenant"
            f" AND o.idempotency_key = j.former_key)) RETURNING id, state){RECORD_ACTION}",
            [job_id, Action.REPLAY, storable(actor), storable(reason)[:500]],
        )
    )


def dismiss(job_id: UUID, *, actor: str, reason: str) -> bool:
    """A dead letter that nobody will replay: it stays failed and leaves the list."""
    return bool(
        fetch(
            "WITH mine AS (UPDATE tasks_job SET dead_letter = false"
            f" WHERE id = %s AND dead_letter RETURNING id, state){RECORD_ACTION}",
            [job_id, Action.DISMISS, storable(actor), storable(reason)[:500]],
        )
    )


RECORD_ACTION = (
    " INSERT INTO tasks_operatoraction (job_id, action, actor, reason, at)"
    " SELECT id, %s, %s, %s, clock_timestamp() FROM mine RETURNING (SELECT state FROM mine)"
)


# --- readers ------------------------------------------------------------------------------


@dataclass(frozen=True)
class OutcomeOf:
    """What a caller who waits for a job wants to know."""

    task: str
    state: State
    attempts: int
    result: Any
    error_type: str
    error_message: str
    error_traceback: str
    cancel_reason: str
    finished_at: datetime | None
    failure: str
    progress: Any
    queue: str
    worker: str


def outcome_of(job_id: UUID) -> OutcomeOf | None:
    rows = fetch(
        "SELECT task, state, attempts, result, error_type, error_message, error_traceback,"
        " cancel_reason, finished_at, failure, progress, queue, worker FROM tasks_job"
        " WHERE id = %s",
        [job_id],
    )
    return OutcomeOf(rows[0][0], State(rows[0][1]), *rows[0][2:]) if rows else None


def headers_of(job_id: UUID) -> dict[str, Any]:
    rows = fetch("SELECT headers FROM tasks_job WHERE id = %s", [job_id])
    return (rows[0][0] if rows else None) or {}


# --- what is not a job -------------------------------------------------------------------


def park(*, queue: str, reason: str, task: str, headers: str, body: bytes) -> None:
    """Keep a broker message that cannot become a job, with its bytes and the reason."""
    execute(
        "INSERT INTO tasks_parkedmessage (at, queue, reason, task, headers, body)"
        " VALUES (clock_timestamp(), %s, %s, %s, %s, %s)",
        [
            storable(queue)[:255], storable(reason)[:500], storable(task)[:255],
            storable(headers), body,
        ],
    )  # fmt: skip
