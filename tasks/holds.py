"""Lets held jobs go again once somebody can run them: one who knows the task, another release."""

from __future__ import annotations

import structlog

from tasks import ledger
from tasks.fleet import LIVE_FOR_S
from tasks.ledger import INCOMPATIBLE, UNKNOWN, kinds_of
from tasks.sql import execute
from tasks.wiring import topology

log = structlog.get_logger(__name__)

# Seconds between two tries of one job: while two releases are live, the message may reach the
# wrong one again.
PAUSE_S = 1.0


def release(limit: int) -> int:
    """What a live worker of its queue can run goes back to the due work; how many jobs."""
    known = release_known(limit, pause_s=PAUSE_S, live_for_s=LIVE_FOR_S)
    refused = release_refused(limit, pause_s=PAUSE_S, live_for_s=LIVE_FOR_S)
    if known or refused:
        log.info("holds_released", task_known=known, other_release=refused)
    return known + refused


def give_up(limit: int) -> int:
    """End what nobody could run for the queue's ``give_up_after``; how many jobs."""
    count = 0
    for queue in ledger.queues_with_held_jobs():
        after_s = topology().queue(queue).give_up_after.total_seconds()
        for job_id in ledger.give_up_held(queue, after_s, limit):
            log.error("job_gave_up", job_id=str(job_id), queue=queue)
            count += 1
    return count


# --- the statements -----------------------------------------------------------------------

LIVE = (
    " live AS MATERIALIZED (SELECT q AS queue, capacity, known_tasks, release, started_at"
    " FROM tasks_worker, jsonb_array_elements_text(queues) AS q"
    " WHERE stopped_at IS NULL AND NOT draining"
    " AND last_beat > clock_timestamp() - %s * interval '1 second')"
)
# How many of one kind at once: no more than the able can take while others would refuse them.
# The pause keeps a job from going round between two live versions all the time.
RELEASE = (
    " UPDATE tasks_job SET hold_reason = '' WHERE id = ANY(ARRAY("
    " SELECT job.id FROM kinds k, LATERAL ({able}) AS able, LATERAL ("
    " SELECT id FROM tasks_job WHERE {held} AND queue = k.queue AND {column} = k.kind"
    # Not clock_timestamp(), which no index can be searched for.
    " AND held_at < least(able.held_before, statement_timestamp() - %s * interval '1 second')"
    " ORDER BY held_at LIMIT CASE WHEN able.everybody THEN %s ELSE least(%s, 2 * able.capacity) END"
    " FOR UPDATE SKIP LOCKED) AS job WHERE able.capacity > 0 LIMIT %s))"
)
KNOWS = (
    "SELECT sum(capacity) FILTER (WHERE knows) AS capacity, bool_and(knows) AS everybody,"
    " 'infinity'::timestamptz AS held_before"
    " FROM (SELECT *, known_tasks ? k.kind AS knows FROM live) AS l WHERE l.queue = k.queue"
)
# The same release may be another code where releases have no names: then a later start counts.
DIFFERS = (
    "SELECT coalesce(sum(capacity) FILTER (WHERE release <> k.kind), sum(capacity)) AS capacity,"
    " bool_and(release <> k.kind) AS everybody,"
    " CASE WHEN bool_or(release <> k.kind) THEN 'infinity' ELSE max(started_at) END AS held_before"
    " FROM live AS l WHERE l.queue = k.queue"
)
RELEASE_KNOWN = f"{kinds_of(UNKNOWN, 'task')}{LIVE}" + RELEASE.format(
    able=KNOWS, held=UNKNOWN, column="task"
)
RELEASE_DIFFERING = f"{kinds_of(INCOMPATIBLE, 'release')}{LIVE}" + RELEASE.format(
    able=DIFFERS, held=INCOMPATIBLE, column="release"
)


def release_known(limit: int, *, pause_s: float, live_for_s: float) -> int:
    """Let jobs go that were unknown to a worker and are known to a live one of their queue."""
    return execute(RELEASE_KNOWN, [live_for_s, pause_s, limit, limit, limit])


def release_refused(limit: int, *, pause_s: float, live_for_s: float) -> int:
    """Let jobs go whose payload one release refused, once another one is live."""
    return execute(RELEASE_DIFFERING, [live_for_s, pause_s, limit, limit, limit])
