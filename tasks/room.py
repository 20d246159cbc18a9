"""How many jobs may wait in a queue, and how many do: the SQL of admission.

A sample (``tasks_queuestate``) is what was counted lately, and up to which ``seq``. Who wants to
insert adds the jobs younger than that: a few rows at the end of an index, never the backlog.
"""

from __future__ import annotations

from dataclasses import asdict, astuple, dataclass
from functools import cache

from tasks.sql import execute, fetch


@dataclass(frozen=True)
class Bounds:
    """How many due jobs of a queue may wait; None is no bound of that kind."""

    max_waiting: int | None
    max_per_tenant: int | None
    max_wait_s: float | None
    at_once: int  # so many start soon, whatever rate was measured before


# --- room ---------------------------------------------------------------------------------

# In these, `s` is the QueueState, `b` the Bounds, `g` the job (its queue and tenant).

CLOSED = "kind = 'queue' AND closed AND (until IS NULL OR until > clock_timestamp())"
OPEN = f"g.queue <> ALL (ARRAY(SELECT name FROM tasks_pause WHERE {CLOSED}))"

# Seconds over which the relay averages the rate at which a queue drains.
RATE_OVER_S = 5.0
RATE_AGE = (
    "greatest(extract(epoch FROM clock_timestamp() - greatest(s.per_s_at, s.idle_at))::float8,"
    " 0.001)"
)
# Jobs per second. An idle queue keeps what it could do last; one that takes nothing for the time
# of several jobs stands still. Between two jobs of a slow queue the average fades too far.
RATE = (
    "(CASE WHEN s.queue IS NULL THEN 0"
    f" WHEN {RATE_AGE} > {RATE_OVER_S} + 3 / greatest(s.per_s, 0.001) THEN 0"
    f" ELSE greatest(s.per_s * exp(-least({RATE_AGE} / {RATE_OVER_S}, 100)),"
    f" least(s.per_s, 1 / {RATE_AGE})) END)"
)
NO_BOUND = 2**31 - 1
EXPECTED = (
    "coalesce(CASE WHEN b.max_wait_s IS NOT NULL"
    f" THEN greatest(b.at_once, least({RATE} * b.max_wait_s, 1e9))::int END, {NO_BOUND})"
)
ROOM = f"least(coalesce(b.max_waiting, {NO_BOUND}), {EXPECTED})"
READY = "j.queue = g.queue AND j.state = 'queued' AND j.due AND j.hold_reason = ''"
HELD = "j.queue = g.queue AND j.state = 'queued' AND j.due AND j.hold_reason <> ''"


def younger(of: str, limit: str) -> str:
    """Counts jobs that were accepted after the sample and still wait."""
    # The upper end keeps a planner without statistics from reading the whole table.
    return (
        "(SELECT count(*) FROM (SELECT FROM tasks_job j WHERE j.seq > s.waiting_seq"
        f" AND j.seq < s.waiting_seq + 1000000000000 AND j.queue = g.queue AND {of}"
        f" AND j.state = 'queued' AND j.due ORDER BY j.seq DESC LIMIT greatest(0, {limit})) AS y)"
    )


def counted(of: str, limit: str) -> str:
    """Counts the jobs themselves: only where there is no sample yet."""
    return (
        f"((SELECT count(*) FROM (SELECT FROM tasks_job j WHERE {READY} AND {of} LIMIT {limit}) y)"
        f" + (SELECT count(*) FROM (SELECT FROM tasks_job j WHERE {HELD} AND {of}"
        f" LIMIT {limit}) y))"
    )


WAITING = (
    f"(CASE WHEN b.max_waiting IS NULL AND b.max_wait_s IS NULL THEN 0"
    f" WHEN s.queue IS NULL THEN {counted('true', 'r.room')}"
    f" ELSE s.waiting + {younger('true', 'r.room - s.waiting')} END)"
)
TENANT_COUNTED = (
    "coalesce((SELECT l.waiting FROM tasks_tenantload l"
    " WHERE l.queue = g.queue AND l.tenant = g.tenant), 0)"
)
TENANT_WAITING = (
    "(CASE WHEN b.max_per_tenant IS NULL THEN 0"
    f" WHEN s.queue IS NULL THEN {counted('j.tenant = g.tenant', 'b.max_per_tenant')}"
    f" ELSE {TENANT_COUNTED} + {younger('j.tenant = g.tenant', 'b.max_per_tenant')} END)"
)
BOUNDS = ", ".join(("max_waiting", "max_per_tenant", "max_wait_s", "at_once"))
# The dispatcher may have made the row; 0 is no sample.
SAMPLED = "LEFT JOIN tasks_queuestate s ON s.queue = g.queue AND s.waiting_seq <> 0"
STATE = f"{SAMPLED}, LATERAL (SELECT {ROOM} AS room) AS r"
# Open transactions cannot be seen. Where they could be a large part of the room, those who come
# near to its end line up (``accept.line_up``).
NEAR = 100
SMALL_ROOM = 10 * NEAR
MARGIN = f"(CASE WHEN r.room >= {SMALL_ROOM} THEN 0 ELSE least({NEAR}, r.room / 2) END)"
LATER = "g.run_at > clock_timestamp()"


@cache
def bound(bounds: Bounds) -> str:
    """As literals: with parameters PostgreSQL would plan each insert anew, which takes longer
    than the insert."""
    kinds = ("int", "int", "float8", "int")
    values = (
        "NULL" if value is None else repr(float(value) if kind == "float8" else int(value))
        for value, kind in zip(astuple(bounds), kinds, strict=True)
    )
    literals = (f"{value}::{kind}" for value, kind in zip(values, kinds, strict=True))
    return f"(VALUES ({', '.join(literals)})) AS b({BOUNDS})"


def has_room(bounds: Bounds, *, to_the_end: bool) -> str:
    margin = "0" if to_the_end else MARGIN
    return (
        f"({LATER} OR EXISTS (SELECT FROM {bound(bounds)} {STATE}"
        f" WHERE {WAITING} + {margin} < r.room"
        f" AND (b.max_per_tenant IS NULL OR {TENANT_WAITING} < b.max_per_tenant)))"
    )


# Seconds. Relays count more often; without one, whoever enqueues does it.
SAMPLE_KEEPS_S = 2.0
SAMPLE_IS_OLD = (
    "coalesce((SELECT waiting_seq = 0 OR waiting_at < clock_timestamp()"
    f" - {SAMPLE_KEEPS_S} * interval '1 second'"
    " FROM tasks_queuestate WHERE queue = tasks_job.queue), true)"
)


# --- why not ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Look:
    """How a queue stands for one tenant, as the insert sees it."""

    closed: bool
    opens_in_s: float | None
    waiting: int
    expected_room: int  # jobs that start within ``max_wait_s``
    tenant_waiting: int
    rate: float  # jobs per second that leave it
    tenants: int  # with waiting jobs
    sample_is_old: bool


def look(queue: str, tenant: str, bounds: Bounds) -> Look:
    rows = fetch(
        f"SELECT p.name IS NOT NULL, extract(epoch FROM p.until - clock_timestamp())::float8,"
        f" {WAITING}, {EXPECTED}, {TENANT_WAITING}, coalesce({RATE}, 0), coalesce(s.tenants, 1),"
        f" coalesce(s.waiting_at < clock_timestamp() - {SAMPLE_KEEPS_S} * interval '1 second',"
        " true) FROM (VALUES (%s::text, %s::text)) AS g(queue, tenant)"
        f" CROSS JOIN {bound(bounds)}"
        f" LEFT JOIN tasks_pause p ON p.name = g.queue AND {CLOSED} {STATE}",
        [queue, tenant],
    )
    return Look(*rows[0])


# --- the sample ---------------------------------------------------------------------------

# Tenants with less than this share of what one tenant may have count as none.
NOTABLE_SHARE = 0.1
# So many of the newest rows are left to the inserts to count: among them are those whose
# transactions are still open and whose numbers are lower than some that can be seen.
UNSEEN_MAX = 100
# Rows of a queue that one sample reads when nothing bounds all its tenants together.
READ_MAX = 100_000
MINE = (
    "mine AS MATERIALIZED (SELECT queue FROM tasks_queuestate WHERE queue = %(queue)s"
    " AND (waiting_seq = 0"
    " OR waiting_at <= clock_timestamp() - %(older_than_s)s * interval '1 second')"
    " FOR NO KEY UPDATE SKIP LOCKED)"
)
SAMPLE = (
    f"WITH {MINE},"
    " mark AS MATERIALIZED (SELECT coalesce((SELECT seq FROM tasks_job ORDER BY seq DESC"
    " OFFSET %(unseen)s LIMIT 1), -1) AS seq),"
    " counted AS MATERIALIZED (SELECT w.tenant, count(*) AS all_of_it,"
    " count(*) FILTER (WHERE w.seq <= mark.seq) AS older FROM mark, mine AS g, LATERAL ("
    f" (SELECT j.tenant, j.seq FROM tasks_job j WHERE {READY} LIMIT %(at_most)s) UNION ALL"
    f" (SELECT j.tenant, j.seq FROM tasks_job j WHERE {HELD} LIMIT %(at_most)s)) AS w"
    " GROUP BY w.tenant),"
    " notable AS (SELECT tenant, older FROM counted WHERE older >= %(notable)s::float8),"
    " forgotten AS (DELETE FROM tasks_tenantload l USING mine WHERE l.queue = mine.queue"
    " AND NOT EXISTS (SELECT FROM notable n WHERE n.tenant = l.tenant)),"
    " kept AS (INSERT INTO tasks_tenantload AS l (queue, tenant, waiting)"
    " SELECT mine.queue, n.tenant, n.older FROM mine, notable n"
    " ON CONFLICT (queue, tenant) DO UPDATE SET waiting = excluded.waiting"
    " WHERE l.waiting <> excluded.waiting),"
    " total AS (SELECT coalesce(sum(all_of_it), 0)::int AS waiting,"
    " coalesce(sum(older), 0)::int AS older, count(*)::int AS tenants FROM counted),"
    # Whoever was told when to come has come, or does not care: the queue has room again.
    " lapsed AS (DELETE FROM tasks_promise t USING mine, total, tasks_queuestate s, (VALUES"
    " (%(max_waiting)s::int, %(max_per_tenant)s::int, %(max_wait_s)s::float8, %(at_once)s::int))"
    f" AS b({BOUNDS}) WHERE t.queue = mine.queue AND s.queue = mine.queue"
    " AND (t.until < clock_timestamp() - interval '1 second' OR total.waiting = 0"
    f" OR (t.tenant IS NULL AND total.waiting + 2 * s.per_s < {ROOM})))"
    " UPDATE tasks_queuestate s SET waiting = total.older, tenants = total.tenants,"
    f" waiting_seq = mark.seq, waiting_at = clock_timestamp(),"
    " idle_at = CASE WHEN total.waiting = 0 THEN clock_timestamp() ELSE s.idle_at END,"
    f" room = nullif({ROOM}, {NO_BOUND})"
    " FROM mine, mark, total, (VALUES (%(max_waiting)s::int, %(max_per_tenant)s::int,"
    f" %(max_wait_s)s::float8, %(at_once)s::int)) AS b({BOUNDS})"
    " WHERE s.queue = mine.queue RETURNING total.waiting"
)


def take_sample(queue: str, bounds: Bounds, *, older_than_s: float) -> int | None:
    """Count what waits in a queue; the number, or None when the last sample is young enough.

    Or when somebody else is at it. Reads no more than about twice as many rows as may wait.
    """
    most = max(bounds.max_waiting or 0, bounds.max_per_tenant or 0, bounds.at_once)
    rows = fetch(
        SAMPLE,
        {
            "queue": queue,
            "older_than_s": older_than_s,
            "unseen": UNSEEN_MAX,
            "at_most": READ_MAX if bounds.max_waiting is None else 2 * most + 1000,
            "notable": max(1.0, NOTABLE_SHARE * (bounds.max_per_tenant or NO_BOUND)),
            **asdict(bounds),
        },
    )
    return rows[0][0] if rows else None


def start_sampling(queue: str) -> bool:
    """The first sample of a queue has a row to go to. False: it has one."""
    return bool(
        execute("INSERT INTO tasks_queuestate (queue) VALUES (%s) ON CONFLICT DO NOTHING", [queue])
    )


# --- promises --------------------------------------------------------------------------------


def promise(
    queue: str,
    tenant: str | None,
    *,
    first_s: float,
    each_s: float,
    at_most_s: float,
    patience_ms: int,
) -> float:
    """Seconds until one more refused caller finds room, after all those who were told so before.

    ``tenant`` None: refused by the queue. Raises OperationalError when the row stays locked.
    """
    rows = fetch(
        # Losing the last few promises in a crash costs nothing; waiting for the disk would.
        "WITH hurry AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true),"
        " set_config('lock_timeout', %(patience)s, true))"
        " INSERT INTO tasks_promise AS t (queue, tenant, until)"
        " SELECT %(queue)s, %(tenant)s,"
        " clock_timestamp() + least(%(first_s)s, %(at_most_s)s) * interval '1 second' FROM hurry"
        " ON CONFLICT (queue, tenant) DO UPDATE SET until = least("
        " greatest(t.until + %(each_s)s * interval '1 second', excluded.until),"
        " clock_timestamp() + %(at_most_s)s * interval '1 second')"
        " RETURNING extract(epoch FROM until - clock_timestamp())::float8",
        {
            "queue": queue, "tenant": tenant, "first_s": first_s, "each_s": each_s,
            "at_most_s": at_most_s, "patience": str(patience_ms),
        },
    )  # fmt: skip
    return float(rows[0][0])
