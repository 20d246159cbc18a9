"""Accepting a job: the first change of its life, and who has its key already.

One statement inserts where there is room. Admission is part of it: it adds what was counted
lately (``tasks_queuestate``, see ``admission.py``) to the jobs younger than that count, so it
neither counts a backlog nor locks a row that all callers share.

Callers own the transaction; without one, each statement commits by itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from datetime import datetime
from functools import cache
from typing import Any
from uuid import UUID

from tasks.room import (
    BOUNDS,
    LATER,
    NO_BOUND,
    OPEN,
    SAMPLE_IS_OLD,
    SAMPLED,
    STATE,
    TENANT_WAITING,
    WAITING,
    Bounds,
    has_room,
)
from tasks.sql import LOCK_TIMEOUT_MS, execute, fetch, set_lock_timeout
from tasks.states import Hold, State


@dataclass(frozen=True)
class NewJob:
    """A checked job that is about to be accepted. JSON fields are text."""

    id: UUID
    task: str
    queue: str
    tenant: str
    key: str
    fingerprint: str
    payload: str
    headers: str | None = None
    priority: int = 0
    run_at: Any = None
    start_by: Any = None
    ordering_key: str | None = None
    lane: str = ""

    @property
    def payload_data(self) -> Any:
        return json.loads(self.payload)


@dataclass(frozen=True)
class Insertion:
    """``happened`` False: somebody has the key or the id, or there was no room."""

    happened: bool
    relay_sleeps: bool = False  # as the statement began
    sample_is_old: bool = False  # what was counted of its queue, if it has a bound


COLUMNS = {
    "id": "uuid",
    "task": "text",
    "queue": "text",
    "tenant": "text",
    "idempotency_key": "text",
    "fingerprint": "text",
    "payload": "json",
    "headers": "json",
    "priority": "int",
    "run_at": "timestamptz",
    "start_by": "timestamptz",
    "ordering_key": "text",
    "lane": "text",
}
NAMES = ", ".join(COLUMNS)
INSERT = (
    "WITH patience AS MATERIALIZED (SELECT current_setting('lock_timeout') AS usual,"
    f" set_config('lock_timeout', '{LOCK_TIMEOUT_MS}', true)){{more}}"
    f" INSERT INTO tasks_job ({NAMES}, due, seq, hold_reason)"
    f" SELECT {NAMES.replace('run_at', 'coalesce(run_at, clock_timestamp())')},"
    " coalesce(run_at <= clock_timestamp(), true), seq, {hold} FROM patience,"
    " (SELECT g.*, nextval('tasks_job_seq') AS seq FROM ({given}) AS g) AS given"
)
# Two racers may both find nobody before them: the relay looks again before it dispatches.
IN_ORDER = (
    "CASE WHEN ordering_key IS NOT NULL AND ("
    "row_number() OVER (PARTITION BY queue, tenant, ordering_key ORDER BY seq) > 1 OR EXISTS ("
    "SELECT FROM tasks_job j WHERE j.queue = given.queue AND j.tenant = given.tenant"
    " AND j.ordering_key = given.ordering_key"
    " AND j.state IN ('queued', 'dispatched', 'running')))"
    f" THEN '{Hold.ORDER}' ELSE '' END"
)
ONE = ", ".join(f"%s::{kind}" for kind in COLUMNS.values())
MANY = ", ".join(f"%s::{kind}[]" for kind in COLUMNS.values())


def values_of(job: NewJob) -> list[Any]:
    return [
        job.id, job.task, job.queue, job.tenant, job.key, job.fingerprint, job.payload,
        job.headers, job.priority, job.run_at, job.start_by, job.ordering_key, job.lane,
    ]  # fmt: skip


# --- insert -------------------------------------------------------------------------------


def accept(job: NewJob) -> Insertion:
    """Insert the job unless its key or id is taken. Not ``happened``: read back who has it.

    Inside a transaction, one that did not happen leaves a lock timeout of ours behind: the
    caller goes back to a savepoint.
    """
    return insertion(insert_one("", is_ordered=bool(job.ordering_key)), job)


def accept_if_open(job: NewJob) -> Insertion:
    """``accept``, unless an operator closed the queue."""
    return insertion(insert_one(f" WHERE {OPEN}", is_ordered=bool(job.ordering_key)), job)


def accept_if_room(job: NewJob, bounds: Bounds, *, to_the_end: bool) -> Insertion:
    """``accept_if_open``, and while there is room: a job for later always finds some.

    ``to_the_end``: up to the last place, also of a small room. See ``line_up``.
    """
    is_ordered = bool(job.ordering_key)
    return insertion(insert_one_if_room(bounds, to_the_end=to_the_end, is_ordered=is_ordered), job)


def insertion(statement: str, job: NewJob) -> Insertion:
    rows = fetch(statement, values_of(job))
    return Insertion(True, *rows[0][:2]) if rows else Insertion(False)


# Answered by the insert itself: questions of their own would each cost a round trip.
RELAY_SLEEPS = "EXISTS (SELECT FROM tasks_relay WHERE sleeping)"
USUAL_PATIENCE = "set_config('lock_timeout', (SELECT usual FROM patience), true)"


@cache
def insert_one(where: str, *, is_ordered: bool, sample_is_old: str = "false") -> str:
    given = f"SELECT * FROM (VALUES ({ONE})) AS g({NAMES}){where}"
    answers = f"{RELAY_SLEEPS}, {sample_is_old}, {USUAL_PATIENCE}"
    return f"{insert_of(given, is_ordered)} ON CONFLICT DO NOTHING RETURNING {answers}"


@cache
def insert_one_if_room(bounds: Bounds, *, to_the_end: bool, is_ordered: bool) -> str:
    where = f" WHERE {OPEN} AND {has_room(bounds, to_the_end=to_the_end)}"
    return insert_one(where, is_ordered=is_ordered, sample_is_old=SAMPLE_IS_OLD)


def insert_of(given: str, is_ordered: bool, *, more: str = "") -> str:
    """Looking for older jobs of an ordering key is for those who have one."""
    return INSERT.format(more=more, given=given, hold=IN_ORDER if is_ordered else "''")


# --- insert many --------------------------------------------------------------------------

# A thousand rows take a second on a busy machine, and several callers may be at it.
MANY_LOCK_TIMEOUT_MS = 10_000


def line_up(queue: str, *, patience_ms: int = LOCK_TIMEOUT_MS) -> None:
    """Until the transaction ends, nobody else is here. Never inside a caller's transaction."""
    fetch(
        "WITH patience AS MATERIALIZED (SELECT set_config('lock_timeout', %s, true))"
        " SELECT pg_advisory_xact_lock(hashtextextended(%s, 2)) FROM patience",
        [str(patience_ms), queue],
    )


MANY_GIVEN = (
    f", given AS MATERIALIZED (SELECT g.*, coalesce({LATER}, false) AS later"
    f" FROM unnest({MANY}) WITH ORDINALITY AS g({NAMES}, nr)),"
    f" bounds AS (SELECT * FROM unnest(%s::text[], %s::int[], %s::int[], %s::float8[], %s::int[])"
    f" AS b(queue, {BOUNDS})),"
    " places AS MATERIALIZED (SELECT g.queue, r.room,"
    f" r.room - {WAITING} AS count FROM (SELECT DISTINCT queue FROM given) AS g"
    f" JOIN bounds b ON b.queue = g.queue {STATE}),"
    " tenant_places AS MATERIALIZED (SELECT g.queue, g.tenant,"
    f" b.max_per_tenant - {TENANT_WAITING} AS count"
    " FROM (SELECT DISTINCT queue, tenant FROM given) AS g"
    " JOIN bounds b ON b.queue = g.queue AND b.max_per_tenant IS NOT NULL"
    f" {SAMPLED}),"
    " ranked AS (SELECT g.*, row_number() OVER (PARTITION BY queue, later ORDER BY nr) AS rank,"
    " row_number() OVER (PARTITION BY queue, tenant, later ORDER BY nr) AS tenant_rank"
    " FROM given AS g)"
)
MANY_WITH_ROOM = (
    f"SELECT g.* FROM ranked AS g LEFT JOIN places p ON p.queue = g.queue"
    " LEFT JOIN tenant_places t ON t.queue = g.queue AND t.tenant = g.tenant"
    f" WHERE {OPEN} AND (g.later OR (rank <= coalesce(p.count, {NO_BOUND})"
    f" AND tenant_rank <= coalesce(t.count, {NO_BOUND}))) ORDER BY g.nr"
)
ALL_GIVEN = f"SELECT * FROM unnest({MANY}) AS g({NAMES}) WHERE %s OR {OPEN}"
# Inserted in key order: two callers with the same keys wait for each other, not in a circle.
IN_KEY_ORDER = " ORDER BY tenant, idempotency_key ON CONFLICT DO NOTHING RETURNING id"


def are_ordered(jobs: Iterable[NewJob]) -> bool:
    return any(job.ordering_key for job in jobs)


def accept_many(jobs: Sequence[NewJob], *, always: bool = False) -> set[UUID]:
    """Insert what is new, in one statement, numbered in the given order; the inserted ids.

    ``always``: closed queues too.
    """
    rows = fetch(
        f"{insert_of(ALL_GIVEN, are_ordered(jobs))}{IN_KEY_ORDER}",
        [*columns(map(values_of, jobs)), always],
    )
    return {row[0] for row in rows}


def accept_many_if_room(jobs: Sequence[NewJob], bounds: dict[str, Bounds]) -> set[UUID]:
    """The first ones for which there is room. A queue without ``bounds`` has no end."""
    limits = columns([name, *astuple(bound)] for name, bound in bounds.items())
    rows = fetch(
        f"{insert_of(MANY_WITH_ROOM, are_ordered(jobs), more=MANY_GIVEN)}{IN_KEY_ORDER}",
        [*columns(map(values_of, jobs)), *limits],
    )
    return {row[0] for row in rows}


def columns(rows: Iterable[Sequence[Any]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


# --- displaced ----------------------------------------------------------------------------


def lock_less_important(job: NewJob) -> UUID | None:
    """The least important waiting job of its queue and tenant that is less so than ``job``.

    Of equals the youngest. Locked until the transaction ends, so that it stays what it is.
    """
    # From lane to lane, because only within one does the index of due work have this order.
    due = "state = 'queued' AND due AND hold_reason = ''"
    rows = fetch(
        "WITH RECURSIVE lanes AS ("
        f" (SELECT lane FROM tasks_job WHERE queue = %s AND {due} ORDER BY lane LIMIT 1) UNION ALL"
        f" SELECT (SELECT j.lane FROM tasks_job j WHERE queue = %s AND {due} AND j.lane > l.lane"
        " ORDER BY j.lane LIMIT 1) FROM lanes l WHERE l.lane IS NOT NULL),"
        " last AS (SELECT found.* FROM lanes l, LATERAL (SELECT id, priority, seq FROM tasks_job j"
        f" WHERE queue = %s AND j.lane = l.lane AND tenant = %s AND {due} AND priority < %s"
        " ORDER BY priority, seq DESC LIMIT 100) AS found)"
        " SELECT j.id FROM tasks_job j JOIN last USING (id)"
        f" WHERE j.state = 'queued' ORDER BY j.priority, j.seq DESC LIMIT 1"
        " FOR UPDATE OF j SKIP LOCKED",
        [job.queue, job.queue, job.queue, job.tenant, job.priority],
    )
    return rows[0][0] if rows else None


# --- who has the key ----------------------------------------------------------------------


def owners_of(jobs: Sequence[NewJob]) -> set[UUID]:
    """Those of these jobs whose key or id somebody has."""
    if not jobs:
        return set()
    rows = fetch(
        "SELECT g.id FROM unnest(%s::uuid[], %s::text[], %s::text[]) AS g(id, tenant, key)"
        " WHERE EXISTS (SELECT FROM tasks_job j WHERE j.tenant = g.tenant"
        " AND j.idempotency_key = g.key) OR EXISTS (SELECT FROM tasks_job j WHERE j.id = g.id)",
        columns([job.id, job.tenant, job.key] for job in jobs),
    )
    return {row[0] for row in rows}


@dataclass(frozen=True)
class Owner:
    """The job that has a key already."""

    id: UUID
    task: str
    queue: str
    state: State
    fingerprint: str
    payload: Any
    finished_at: datetime | None

    @classmethod
    def first(cls, rows: Sequence[tuple[Any, ...]]) -> Owner | None:
        if not rows:
            return None
        job_id, task, queue, state, *rest = rows[0]
        return cls(job_id, task, queue, State(state), *rest)


OWNER = "SELECT id, task, queue, state, fingerprint, payload, finished_at FROM tasks_job"


def owner_of(job: NewJob) -> Owner | None:
    """Who has the key, or the id, of a job that was not inserted. None: nobody any more."""
    return Owner.first(
        fetch(
            f"{OWNER} WHERE tenant = %s AND idempotency_key = %s"
            f" UNION ALL {OWNER} WHERE id = %s AND tenant = %s LIMIT 1",
            [job.tenant, job.key, job.id, job.tenant],
        )
    )


def owner_since(tenant: str, keys: Sequence[str], since_s: float) -> Owner | None:
    """The job of one of these keys that was accepted after ``since_s`` (epoch seconds)."""
    return Owner.first(
        fetch(
            f"{OWNER} WHERE tenant = %s AND idempotency_key = ANY(%s)"
            " AND created_at > to_timestamp(%s) ORDER BY seq DESC LIMIT 1",
            [tenant, list(keys), since_s],
        )
    )


def lock_content(content: str) -> float:
    """Serialise callers of the same content until the transaction ends; the time (epoch s)."""
    set_lock_timeout(str(LOCK_TIMEOUT_MS))
    fetch("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [content])
    return float(fetch("SELECT extract(epoch FROM clock_timestamp())", [])[0][0])


def free_key(job_id: UUID) -> bool:
    """A terminal job gives its key to a younger one (``unique="unfinished"``)."""
    return bool(
        execute(
            "UPDATE tasks_job SET former_key = idempotency_key, idempotency_key = NULL"
            " WHERE id = %s AND idempotency_key IS NOT NULL"
            " AND state IN ('succeeded', 'failed', 'cancelled')",
            [job_id],
        )
    )


def replace_payload(job_id: UUID, payload: str, fingerprint: str) -> bool:
    """Swap the payload of a job that has never started (``on_conflict="replace"``).

    What was wrong with the old one holds the job no more.
    """
    return bool(
        execute(
            "UPDATE tasks_job SET payload = %s::json, fingerprint = %s, returned_since = NULL,"
            " hold_reason = CASE WHEN starts_with(hold_reason, %s) THEN '' ELSE hold_reason END"
            " WHERE id = %s AND state IN ('queued', 'dispatched') AND started_at IS NULL",
            [payload, fingerprint, Hold.INCOMPATIBLE, job_id],
        )
    )
