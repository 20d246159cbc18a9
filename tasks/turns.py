"""Whose turn it is: which due jobs of a queue go out next.

Tenants first: whoever has the least in flight for its weight. Then priority within the tenant,
then age. Of an ordering key only the oldest unfinished job may go.

The cost does not grow with the backlog: the statement hops from tenant to tenant in the index of
due work, looks at a bounded number of them and at few rows of each. The next one goes on behind
the tenant that was served last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Tenants that one pass looks at.
TENANTS_AT_ONCE = 100


@dataclass(frozen=True)
class Shares:
    """How the tenants of a queue share it. One that is not named has weight 1.

    ``most``: jobs of one tenant that may be in flight, ``most_of`` for some; None is no limit.
    """

    weights: Mapping[str, int] = field(default_factory=dict)
    most_of: Mapping[str, int] = field(default_factory=dict)
    most: int | None = None
    paused_tenants: Sequence[str] = ()
    paused_tasks: Sequence[str] = ()


EQUAL = Shares()


def parameters(queue: str, lane: str, limit: int, shares: Shares, after: str) -> dict[str, Any]:
    """``after``: the tenant that was served last."""
    special = sorted({*shares.weights, *shares.most_of})
    return {
        "queue": queue,
        "lane": lane,
        "limit": limit,
        "after": after,
        "tenants": TENANTS_AT_ONCE,
        "special": special,
        "weights": [shares.weights.get(name, 1) for name in special],
        "mosts": [shares.most_of.get(name, shares.most) for name in special],
        "most": shares.most,
        "paused_tenants": list(shares.paused_tenants),
        "paused_tasks": list(shares.paused_tasks),
    }


DUE = "state = 'queued' AND due AND hold_reason = ''"
DUE_HERE = f"queue = %(queue)s AND lane = %(lane)s AND {DUE}"

# CTEs; the last one, ``chosen``, has id, turn and place in the order in which they go.
CHOSEN = f"""
WITH RECURSIVE behind AS (
    (SELECT tenant, 1 AS place FROM tasks_job
     WHERE {DUE_HERE} AND tenant > %(after)s ORDER BY tenant LIMIT 1)
    UNION ALL
    SELECT next.tenant, place + 1 FROM behind, LATERAL (
        SELECT tenant FROM tasks_job
        WHERE {DUE_HERE} AND tenant > behind.tenant ORDER BY tenant LIMIT 1) AS next
    WHERE place < %(tenants)s
), before AS (
    (SELECT tenant, %(tenants)s + 1 AS place FROM tasks_job
     WHERE {DUE_HERE} AND tenant <= %(after)s ORDER BY tenant LIMIT 1)
    UNION ALL
    SELECT next.tenant, place + 1 FROM before, LATERAL (
        SELECT tenant FROM tasks_job
        WHERE {DUE_HERE} AND tenant > before.tenant AND tenant <= %(after)s
        ORDER BY tenant LIMIT 1) AS next
    WHERE place < 2 * %(tenants)s
), waiting AS MATERIALIZED (
    SELECT tenant, place, coalesce(weight, 1) AS weight, coalesce(given.most, %(most)s) AS most
    FROM (SELECT * FROM behind UNION ALL SELECT * FROM before) AS found
    LEFT JOIN unnest(%(special)s::text[], %(weights)s::int[], %(mosts)s::int[])
        AS given(tenant, weight, most) USING (tenant)
    WHERE tenant <> ALL(%(paused_tenants)s::text[])
    ORDER BY place LIMIT %(tenants)s
), busy AS MATERIALIZED (
    SELECT tenant, count(*) AS jobs FROM (
        SELECT tenant FROM tasks_job WHERE state = 'dispatched' AND queue = %(queue)s
        UNION ALL
        SELECT tenant FROM tasks_job WHERE state = 'running' AND queue = %(queue)s) AS in_flight
    -- Nobody asks where a single tenant waits.
    WHERE (SELECT count(*) > 1 OR max(most) IS NOT NULL FROM waiting)
    GROUP BY tenant
), candidates AS (
    SELECT job.id, place,
        (coalesce(jobs, 0) + row_number() OVER (
            PARTITION BY tenant ORDER BY job.priority DESC, job.seq))::float8 / weight AS turn
    FROM waiting LEFT JOIN busy USING (tenant), LATERAL (
        SELECT id, priority, seq FROM tasks_job AS due_job
        WHERE {DUE_HERE} AND tenant = waiting.tenant AND task <> ALL(%(paused_tasks)s::text[])
        AND (ordering_key IS NULL OR NOT EXISTS (
            SELECT FROM tasks_job AS other
            WHERE other.queue = due_job.queue AND other.tenant = due_job.tenant
            AND other.ordering_key = due_job.ordering_key
            AND other.state IN ('queued', 'dispatched', 'running')
            AND (other.seq < due_job.seq OR other.state <> 'queued')))
        ORDER BY priority DESC, seq
        -- Twice its fair part: some tenants have less, the next pass finds what is left.
        LIMIT greatest(0, least(%(limit)s, most - coalesce(jobs, 0),
            ceil(2.0 * %(limit)s * weight / (SELECT sum(weight) FROM waiting))))::int) AS job
), chosen AS MATERIALIZED (
    SELECT id, turn, place FROM candidates ORDER BY turn, place LIMIT %(limit)s
)"""  # noqa: S608  (holds no input)
