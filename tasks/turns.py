"""Whose turn it is: which due jobs of a queue go out next.

Tenants first, in weighted turns. Then priority within the tenant, then age. Of an ordering key
only the oldest unfinished job may go.

The cost does not grow with the backlog: one statement hops from tenant to tenant in the index of
due work and looks at a bounded number of them, another one takes few rows of each. The next pass
goes on behind the tenant that was served last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Tenants that one pass looks at: twice as many as jobs may go, within these bounds.
TENANTS_AT_LEAST = 50
TENANTS_AT_ONCE = 100


@dataclass(frozen=True)
class Waiting:
    """A tenant with due jobs. ``most`` of its jobs may be in flight; None is no limit."""

    tenant: str
    weight: int = 1
    most: int | None = None
    is_paused: bool = False


@dataclass
class Rounds:
    """What a relay has given to the tenants of one queue: start-time fair queueing.

    A job of a tenant takes 1 / weight of a turn. Whoever comes new, or back, starts at the turn
    that is being served: what it left unused is not saved up, what others had is not held
    against them.
    """

    now: float = 0.0
    last: str = ""  # the tenant that was served last
    ends: dict[str, float] = field(default_factory=dict)

    def start_of(self, tenant: str) -> float:
        return max(self.now, self.ends.get(tenant, 0.0))

    def serve(self, tenants: Iterable[str], weights: Mapping[str, int]) -> None:
        """One job each, in this order."""
        for tenant in tenants:
            start = self.start_of(tenant)
            self.ends[tenant] = start + 1 / weights[tenant]
            self.now, self.last = start, tenant
        # Only those who are ahead need to be remembered: few, as all are served in turns.
        self.ends = {tenant: end for tenant, end in self.ends.items() if end > self.now}


@dataclass(frozen=True)
class Turn:
    """A tenant that takes part, from ``start`` on; ``room`` of its jobs may go."""

    tenant: str
    weight: int
    start: float
    room: int


def turns(
    waiting: Sequence[Waiting], busy: Mapping[str, int], rounds: Rounds, limit: int
) -> list[Turn]:
    """Those that are not paused and may have more in flight than they have (``busy``)."""
    found = []
    for one in waiting:
        room = limit if one.most is None else min(limit, one.most - busy.get(one.tenant, 0))
        if room > 0 and not one.is_paused:
            found.append(Turn(one.tenant, one.weight, rounds.start_of(one.tenant), room))
    return found


def tenants_at_once(limit: int) -> int:
    return min(TENANTS_AT_ONCE, max(TENANTS_AT_LEAST, 2 * limit))


def rows_of_each(found: Sequence[Turn], limit: int) -> int:
    """How many rows of a tenant are worth a look: twice the part of the weightiest. Some have
    less than their part; the next pass finds what is left."""
    part = 2 * limit * max(turn.weight for turn in found) // sum(turn.weight for turn in found)
    return min(limit, power_of_two(part))


def power_of_two(least: int) -> int:
    """Each number makes a statement of its own, which is planned: few must do."""
    return 1 << max(0, least - 1).bit_length()


# --- the statements -----------------------------------------------------------------------


DUE = "state = 'queued' AND due AND hold_reason = ''"
DUE_HERE = f"queue = %(queue)s AND lane = %(lane)s AND {DUE}"

# From the tenant behind the last one, and round again up to that one.
TENANTS = f"""
WITH RECURSIVE behind AS (
    (SELECT tenant, 1 AS place FROM tasks_job
     WHERE {DUE_HERE} AND tenant > %(after)s ORDER BY tenant LIMIT 1)
    UNION ALL
    SELECT next.tenant, place + 1 FROM behind, LATERAL (
        SELECT tenant FROM tasks_job
        WHERE {DUE_HERE} AND tenant > behind.tenant ORDER BY tenant LIMIT 1) AS next
    WHERE place < %(tenants)s
), lacking AS MATERIALIZED (
    SELECT %(tenants)s - count(*) AS tenants FROM behind
), before AS (
    (SELECT tenant, %(tenants)s + 1 AS place FROM tasks_job
     WHERE {DUE_HERE} AND tenant <= %(after)s AND (SELECT tenants FROM lacking) > 0
     ORDER BY tenant LIMIT 1)
    UNION ALL
    SELECT next.tenant, place + 1 FROM before, LATERAL (
        SELECT tenant FROM tasks_job
        WHERE {DUE_HERE} AND tenant > before.tenant AND tenant <= %(after)s
        ORDER BY tenant LIMIT 1) AS next
    WHERE place < %(tenants)s + (SELECT tenants FROM lacking)
)
SELECT tenant, coalesce(weight, 1), coalesce(max_running, %(most)s::int), pause.id IS NOT NULL
FROM (SELECT * FROM behind UNION ALL SELECT * FROM before) AS found
LEFT JOIN tasks_tenant ON tasks_tenant.name = tenant
LEFT JOIN tasks_pause AS pause ON pause.kind = 'tenant' AND pause.name = tenant
    AND (until IS NULL OR until > statement_timestamp())
ORDER BY place
"""  # noqa: S608  (holds no input)

# CTEs; the last one has id, turn and place, in the order in which they go. The numbers are
# literals, and what pauses tasks is there only when it is needed: with a LIMIT or a list that it
# does not know, PostgreSQL plans anew each time, which takes longer than all the rest, or takes
# the index for useless.
CHOSEN = f"""
WITH waiting AS (
    SELECT * FROM unnest(
        %(names)s::text[], %(weights)s::int[], %(starts)s::float8[], %(rooms)s::int[])
    WITH ORDINALITY AS turn(tenant, weight, start, room, place) LIMIT {{tenants}}
), candidates AS (
    SELECT job.id, place, room, row_number() OVER of_tenant AS nth,
        start + (row_number() OVER of_tenant - 1)::float8 / weight AS turn
    FROM waiting, LATERAL (
        SELECT id, priority, seq FROM tasks_job AS due_job
        WHERE {DUE_HERE} AND tenant = waiting.tenant {{unless_paused}}
        AND (ordering_key IS NULL OR NOT EXISTS (
            SELECT FROM tasks_job AS other
            WHERE other.queue = due_job.queue AND other.tenant = due_job.tenant
            AND other.ordering_key = due_job.ordering_key
            AND other.state IN ('queued', 'dispatched', 'running')
            AND (other.seq < due_job.seq OR other.state <> 'queued')))
        ORDER BY priority DESC, seq LIMIT {{each}}) AS job
    WINDOW of_tenant AS (PARTITION BY tenant ORDER BY job.priority DESC, job.seq)
), chosen AS MATERIALIZED (
    SELECT id, turn, place FROM candidates WHERE nth <= room ORDER BY turn, place LIMIT {{limit}}
)"""  # noqa: S608  (holds no input)


UNLESS_PAUSED = "AND task <> ALL(%(paused_tasks)s::text[])"


def chosen(found: Sequence[Turn], limit: int, paused_tasks: Sequence[str]) -> str:
    unless_paused = UNLESS_PAUSED if paused_tasks else ""
    numbers = {"tenants": power_of_two(len(found)), "each": rows_of_each(found, limit)}
    return CHOSEN.format(limit=int(limit), unless_paused=unless_paused, **numbers)


def parameters(
    queue: str, lane: str, found: Sequence[Turn], paused_tasks: Sequence[str]
) -> dict[str, Any]:
    pauses = {"paused_tasks": list(paused_tasks)} if paused_tasks else {}
    return {
        "queue": queue,
        "lane": lane,
        "names": [turn.tenant for turn in found],
        "weights": [turn.weight for turn in found],
        "starts": [turn.start for turn in found],
        "rooms": [turn.room for turn in found],
        **pauses,
    }
