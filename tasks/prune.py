"""Deletes finished jobs when the retention of their queue is over, and their keys with them.

Nothing is paid for it while jobs run: there is no index by the time of their end. A relay walks
along the order of acceptance, some rows at a time, up to the first job that is too young to be
over, and starts again a while later. What still waits, runs or is a dead letter it steps over.

A job goes with its attempts, steps, outputs and actions. Foreign keys of other apps are treated
as their ``on_delete`` says; a job that one of them protects stays.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

import structlog
from django.db import IntegrityError, connection, transaction
from django.db.models import ProtectedError, RestrictedError

from tasks import metrics
from tasks.models import Job
from tasks.sql import fetch
from tasks.topology import Queue
from tasks.wiring import topology

log = structlog.get_logger(__name__)

# Jobs that one transaction deletes, in 13 ms or so: the relay does nothing else meanwhile.
BATCH = 100
# Rows that one statement looks at to find them.
LOOK = 2000
# Seconds until the next batch: where there was something, where all was to be kept, and after the
# last one. Millions of jobs may be kept, and walking past them is not to cost anything.
NEXT_BATCH_AFTER_S = 0.1
NEXT_LOOK_AFTER_S = 1.0
NEXT_WALK_AFTER_S = 60.0

PROTECTED = (ProtectedError, RestrictedError, IntegrityError)
BEGINNING = -(2**63)


@dataclass(frozen=True)
class Batch:
    """``after``: the number to go on behind. ``at_end``: nobody behind it can be over yet."""

    pruned: int
    after: int
    at_end: bool


class Pruner:
    """Walks on at each call, when it is time."""

    def __init__(self) -> None:
        self.after = BEGINNING
        self.walks_at = 0.0
        self.pruned = 0  # in this walk
        self.is_behind = False  # there is most likely more to delete, right behind

    def run(self) -> int:
        """One batch; how many jobs it deleted."""
        now = time.monotonic()
        if now < self.walks_at:
            return 0
        batch = prune(self.after)
        self.after = BEGINNING if batch.at_end else batch.after
        self.is_behind = bool(batch.pruned) and not batch.at_end
        self.walks_at = now + pause_s(batch)
        self.note(batch)
        return batch.pruned

    def note(self, batch: Batch) -> None:
        """One line a walk."""
        self.pruned += batch.pruned
        if batch.at_end:
            if self.pruned:
                log.info("jobs_pruned", jobs=self.pruned)
            self.pruned = 0


def pause_s(batch: Batch) -> float:
    if batch.at_end:
        return NEXT_WALK_AFTER_S
    return NEXT_BATCH_AFTER_S if batch.pruned else NEXT_LOOK_AFTER_S


def walk() -> Iterator[Batch]:
    """From the oldest job to the youngest that may be over, at once."""
    batch = Batch(0, BEGINNING, at_end=False)
    while not batch.at_end:
        batch = prune(batch.after)
        yield batch


def prune(after: int) -> Batch:
    """Delete up to ``BATCH`` of the next ``LOOK`` jobs behind this number."""
    over, last_over, last_seen, at_end = look(after)
    pruned = delete(over)
    if len(over) == BATCH:
        return Batch(pruned, last_over, at_end=False)
    return Batch(pruned, last_seen, at_end)


# --- the statements -----------------------------------------------------------------------

# Retention counts from the last thing that happened to it: its end, or what a person did then.
OVER = (
    "job.state IN ('succeeded', 'failed', 'cancelled') AND NOT job.dead_letter"
    " AND job.finished_at < statement_timestamp() - kept.for_s * interval '1 second'"
    " AND NOT EXISTS (SELECT FROM tasks_operatoraction AS action WHERE action.job_id = job.id"
    " AND action.at >= statement_timestamp() - kept.for_s * interval '1 second')"
)
# Of the queues in the topology; what is not declared has the default.
KEPT = (
    "LEFT JOIN unnest(%s::text[], %s::float8[]) AS given(queue, for_s)"
    " ON given.queue = job.queue, LATERAL (SELECT coalesce(given.for_s, %s) AS for_s) AS kept"
)
LOOK_ALONG = (
    "WITH job AS MATERIALIZED (SELECT id, seq, queue, state, dead_letter, created_at, finished_at"
    " FROM tasks_job WHERE seq > %s ORDER BY seq LIMIT %s),"
    f" over AS (SELECT job.id, job.seq FROM job {KEPT} WHERE {OVER} ORDER BY job.seq LIMIT %s)"
    " SELECT ARRAY(SELECT id FROM over), (SELECT max(seq) FROM over), max(seq),"
    " count(*) < %s"
    " OR bool_or(created_at > statement_timestamp() - %s * interval '1 second') FROM job"
)
# Looked at again under the lock: an operator may have replayed it meanwhile.
LOCK = f"SELECT job.id FROM tasks_job AS job {KEPT} WHERE job.id = ANY(%s) AND {OVER}"
COUNT = (
    "SELECT job.queue, count(*),"
    " extract(epoch FROM statement_timestamp() - min(job.finished_at))::float8"
    " FROM tasks_job AS job"
    f" {KEPT} WHERE {OVER} GROUP BY job.queue ORDER BY job.queue"
)


def look(after: int) -> tuple[list[UUID], int, int, bool]:
    """What is over, the last number among it, the last number seen, whether that was the end."""
    retention = retention_s()
    rows = fetch(
        LOOK_ALONG, [after, LOOK, *retention, BATCH, LOOK, min([retention[-1], *retention[1]])]
    )
    over, last_over, last_seen, at_end = rows[0]
    return over, last_over or after, last_seen or after, at_end


def retention_s() -> tuple[list[str], list[float], float]:
    """Per queue, and of those that are not declared."""
    queues = topology().queues.values()
    seconds = [queue.retention.total_seconds() for queue in queues]
    return [queue.name for queue in queues], seconds, Queue("").retention.total_seconds()


def retention_of(queue: str) -> float:
    """Seconds."""
    return topology().queue(queue).retention.total_seconds()


def delete(ids: Sequence[UUID]) -> int:
    """Those that nobody else has locked."""
    if not ids:
        return 0
    with transaction.atomic():
        rows = fetch(f"{LOCK} FOR UPDATE OF job SKIP LOCKED", [*retention_s(), list(ids)])
        pruned = delete_locked([row[0] for row in rows])
    metrics.pruned(pruned)
    return pruned


def delete_locked(ids: Sequence[UUID]) -> int:
    try:
        return delete_all(ids)
    except PROTECTED:
        return sum(delete_unless_protected(job_id) for job_id in ids)


def delete_unless_protected(job_id: UUID) -> int:
    try:
        return delete_all([job_id])
    except PROTECTED as exc:
        log.warning("job_not_pruned", job_id=str(job_id), error=str(exc)[:500])
        return 0


def delete_all(ids: Sequence[UUID]) -> int:
    """In Django's way, so that foreign keys of other apps get what they declare."""
    with transaction.atomic():
        # Only what is needed: two hundred payloads are up to 50 MiB.
        _, of_model = Job.objects.filter(id__in=ids).only("id").delete()
        # Django defers them to the commit, where nobody could step back from a protected job.
        connection.check_constraints()
    return of_model.get(Job._meta.label, 0)


OVERDUE = (
    "WITH job AS MATERIALIZED (SELECT id, queue, state, dead_letter, finished_at"
    " FROM tasks_job ORDER BY seq LIMIT %s)"
    " SELECT coalesce(max(extract(epoch FROM statement_timestamp() - job.finished_at)::float8"
    f" - kept.for_s), 0) FROM job {KEPT} WHERE {OVER}"
)


def overdue_s() -> float:
    """For how long the oldest jobs should have been gone, as far as the first ones tell."""
    rows = fetch(OVERDUE, [LOOK, *retention_s()])
    return float(rows[0][0])


@dataclass(frozen=True)
class Prunable:
    queue: str
    jobs: int
    oldest_age_s: float  # since it ended


def prunable() -> list[Prunable]:
    """What would go now, by queue. Reads the whole table."""
    return [Prunable(*row) for row in fetch(COUNT, list(retention_s()))]
