"""One job of an ordering key at a time, in the order of acceptance.

A job that finds an unfinished one before it is held (``Hold.ORDER``) and so costs the dispatcher
nothing. When the one before has ended, the relay lets the next one go: at once for keys whose
job has ended lately, and for all others in a sweep that goes round.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from tasks.ledger import Dispatched
from tasks.sql import execute, fetch
from tasks.states import Hold

# Seconds for which a key counts as freed lately: longer than a relay is away from its loop, and
# than an ending transaction takes to commit.
LATELY_S = 2.0
# Keys of one sweep, once a second.
KEYS_AT_ONCE = 1000

Key = tuple[str, str, str]
NO_KEY: Key = ("", "", "")


class Orders:
    """What one relay knows of ordering keys. Without any it asks nothing.

    A key in which nobody waits costs nothing either, however many there are.
    """

    def __init__(self) -> None:
        self.are_there = True
        self.freed_at = 0.0
        self.swept: Key = NO_KEY

    def sent(self, jobs: Iterable[Dispatched]) -> None:
        self.are_there = self.are_there or any(job.is_ordered for job in jobs)

    def free(self) -> int:
        """Keys whose job has ended since the last look."""
        if not self.are_there:
            return 0
        now = time.monotonic()
        away_s = min(now - self.freed_at, 60.0) if self.freed_at else 0.0
        self.freed_at = now
        return free_keys(away_s + LATELY_S)

    def sweep(self) -> int:
        """Once a second: what ended unseen, or was enqueued at the moment it ended."""
        self.are_there = has_ordered_jobs()
        if not self.are_there:
            return 0
        freed, self.swept = sweep_keys(self.swept, KEYS_AT_ONCE)
        return freed


# --- the statements -----------------------------------------------------------------------

# The oldest unfinished job of each key, if it waits for one before it.
LET_HEADS_GO = (
    " heads AS (SELECT head.id FROM keys, LATERAL (SELECT id, hold_reason FROM tasks_job"
    " WHERE queue = keys.queue AND tenant = keys.tenant AND ordering_key = keys.ordering_key"
    " AND state IN ('queued', 'dispatched', 'running') ORDER BY seq LIMIT 1) AS head"
    f" WHERE head.hold_reason = '{Hold.ORDER}')"
    " UPDATE tasks_job SET hold_reason = '' WHERE id = ANY(ARRAY(SELECT id FROM tasks_job"
    f" WHERE id = ANY(ARRAY(SELECT id FROM heads)) AND hold_reason = '{Hold.ORDER}'"
    " AND state = 'queued' FOR UPDATE SKIP LOCKED))"
)


def has_ordered_jobs() -> bool:
    return bool(
        fetch(
            "SELECT EXISTS (SELECT FROM tasks_job WHERE state IN ('queued', 'dispatched',"
            " 'running') AND ordering_key IS NOT NULL)",
            [],
        )[0][0]
    )


def free_keys(lately_s: float) -> int:
    """Let the next job go of each ordering key whose job has ended lately."""
    return execute(
        "WITH keys AS (SELECT DISTINCT queue, tenant, ordering_key FROM tasks_job"
        " WHERE ordering_key IS NOT NULL AND finished_at IS NOT NULL"
        # Not clock_timestamp(), which no index can be searched for.
        " AND finished_at > statement_timestamp() - %s * interval '1 second'),"
        f"{LET_HEADS_GO}",
        [lately_s],
    )


def sweep_keys(after: Key, limit: int) -> tuple[int, Key]:
    """The same for up to ``limit`` keys behind this one in which somebody waits.

    What was let go, and the key to go on with; the first one again at the end.
    """
    columns = "queue, tenant, ordering_key"
    waiting = f"state = 'queued' AND hold_reason = '{Hold.ORDER}'"
    hop = f"SELECT {columns} FROM tasks_job WHERE {waiting} AND ({columns}) > "
    order = f"ORDER BY {columns} LIMIT 1"
    rows = fetch(
        f"WITH RECURSIVE keys AS ((SELECT *, 1 AS place FROM ({hop} (%s, %s, %s) {order}) AS k)"
        f" UNION ALL SELECT next.*, place + 1 FROM keys, LATERAL ({hop}"
        f" (keys.queue, keys.tenant, keys.ordering_key) {order}) AS next WHERE place < %s),"
        f" freed AS (WITH {LET_HEADS_GO.strip()} RETURNING 1)"
        f" SELECT {columns}, place, (SELECT count(*) FROM freed) FROM keys"
        " ORDER BY place DESC LIMIT 1",
        [*after, limit],
    )
    if not rows:
        return 0, NO_KEY
    *last, place, freed = rows[0]
    return freed, (last[0], last[1], last[2]) if place == limit else NO_KEY
