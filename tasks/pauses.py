"""What operators keep from running: a queue, a task, a tenant.

The relay does not send what is paused, and takes back what it has sent and has not started. That
costs a job nothing. What runs is left alone. A pause ends when it is resumed or ``until`` passes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog

from tasks import wake
from tasks.ledger import DUE, HELD_BY_REASON, kinds_of, recall
from tasks.sql import execute, fetch, storable
from tasks.states import Hold, Pausable

log = structlog.get_logger(__name__)

# Seconds for which a process believes what it has read: so late a pause or its end is noticed.
BELIEVED_FOR_S = 1.0
# Rows that are read. Whoever pauses more tenants wants something else.
PAUSES_MAX = 10_000
# Seconds between two searches for due jobs of paused tasks, once all are held.
HOLDS_EVERY_S = 10.0
RECALLED_MAX = 1_000  # jobs in one go; the relay goes on each second


@dataclass(frozen=True)
class Paused:
    """One pause. ``until``: None is until it is resumed."""

    kind: Pausable
    name: str
    closed: bool
    actor: str
    reason: str
    paused_at: datetime
    until: datetime | None
    left_s: float | None


@dataclass(frozen=True)
class Pauses:
    """Names of what is paused now."""

    queues: frozenset[str] = frozenset()
    tasks: frozenset[str] = frozenset()
    tenants: frozenset[str] = frozenset()
    closed: frozenset[str] = frozenset()

    @classmethod
    def of(cls, rows: list[Paused]) -> Pauses:
        def names(kind: Pausable) -> frozenset[str]:
            return frozenset(row.name for row in rows if row.kind == kind)

        closed = frozenset(row.name for row in rows if row.closed)
        return cls(names(Pausable.QUEUE), names(Pausable.TASK), names(Pausable.TENANT), closed)


# --- ask ---------------------------------------------------------------------------------


@dataclass
class Belief:
    pauses: Pauses = Pauses()
    until: float = 0.0  # time.monotonic()


_belief = Belief()


def current() -> Pauses:
    """As this process last read it, at most ``BELIEVED_FOR_S`` ago."""
    now = time.monotonic()
    if now >= _belief.until:
        _belief.pauses = Pauses.of(listed())
        _belief.until = now + BELIEVED_FOR_S
    return _belief.pauses


def forget() -> None:
    """The next one who asks reads again."""
    _belief.until = 0.0


def is_queue_paused(name: str) -> bool:
    return name in current().queues


def paused_tasks() -> list[str]:
    return sorted(current().tasks)


PAUSED = (
    "SELECT kind, name, closed, actor, reason, paused_at, until,"
    " extract(epoch FROM until - clock_timestamp())::float8 AS left_s FROM tasks_pause"
    " WHERE (until IS NULL OR until > clock_timestamp())"
)


def listed() -> list[Paused]:
    """What is paused at this moment: queues and tasks, then tenants, the newest first."""
    rows = fetch(f"{PAUSED} ORDER BY kind = 'tenant', paused_at DESC LIMIT %s", [PAUSES_MAX])
    return [paused_of(row) for row in rows]


def find(kind: Pausable, name: str) -> Paused | None:
    rows = fetch(f"{PAUSED} AND kind = %s AND name = %s", [kind, name])
    return paused_of(rows[0]) if rows else None


def still_ahead(until: datetime | None) -> bool:
    """By the clock of the database."""
    return until is None or bool(fetch("SELECT %s > clock_timestamp()", [until])[0][0])


def on(*, queue: str, task: str, tenant: str) -> Paused | None:
    """The pause that keeps such a job longest."""
    rows = fetch(
        f"{PAUSED} AND (kind, name) IN ((%s, %s), (%s, %s), (%s, %s))"
        " ORDER BY until DESC NULLS FIRST LIMIT 1",
        [Pausable.QUEUE, queue, Pausable.TASK, task, Pausable.TENANT, tenant],
    )
    return paused_of(rows[0]) if rows else None


def paused_of(row: tuple[Any, ...]) -> Paused:
    kind, *rest = row
    return Paused(Pausable(kind), *rest)


# --- pause and resume --------------------------------------------------------------------


def pause(
    kind: Pausable,
    name: str,
    *,
    actor: str,
    reason: str = "",
    until: datetime | None = None,
    closed: bool = False,
) -> bool:
    """From now on. False: it was paused before, and has a new reason and end now."""
    rows = fetch(
        "WITH old AS MATERIALIZED (SELECT FROM tasks_pause WHERE kind = %s AND name = %s"
        " AND (until IS NULL OR until > clock_timestamp()))"
        " INSERT INTO tasks_pause (kind, name, closed, actor, reason, paused_at, until)"
        " VALUES (%s, %s, %s, %s, %s, clock_timestamp(), %s)"
        " ON CONFLICT (kind, name) DO UPDATE SET closed = excluded.closed,"
        " actor = excluded.actor, reason = excluded.reason, until = excluded.until,"
        " paused_at = CASE WHEN EXISTS (SELECT FROM old) THEN tasks_pause.paused_at"
        " ELSE excluded.paused_at END"
        " RETURNING NOT EXISTS (SELECT FROM old)",
        [kind, name, kind, name, closed, storable(actor)[:255], storable(reason)[:500], until],
    )
    forget()
    take_back(Pauses.of(listed()))
    log.warning("paused", kind=str(kind), name=name, actor=actor, reason=reason, closed=closed)
    return bool(rows[0][0])


def resume(kind: Pausable, name: str, *, actor: str) -> bool:
    """False: it was not paused."""
    ended = fetch(
        "DELETE FROM tasks_pause WHERE kind = %s AND name = %s"
        " RETURNING until IS NULL OR until > clock_timestamp()",
        [kind, name],
    )
    forget()
    if not ended or not ended[0][0]:
        return False
    log.warning("resumed", kind=str(kind), name=name, actor=actor)
    wake.after_commit()
    return True


# --- the relay keeps it ------------------------------------------------------------------


class Keeper:
    """What one relay does about pauses, once a second.

    Jobs of a paused task are not sent anyway. Holding them only takes them out of the way of the
    others, and to find them means to read all due work: not again at once where nothing is left.
    """

    def __init__(self) -> None:
        self.held_of: frozenset[str] = frozenset()
        self.holds_from = 0.0  # time.monotonic()

    def keep(self, limit: int) -> int:
        """Take back, hold, and let go what is resumed; how many jobs became due."""
        say_ended()
        pauses = current()
        take_back(pauses)
        self.hold(pauses.tasks, limit)
        return release_paused(sorted(pauses.tasks), limit)

    def hold(self, tasks: frozenset[str], limit: int) -> None:
        now = time.monotonic()
        if not tasks or (tasks == self.held_of and now < self.holds_from):
            return
        held = hold_paused(sorted(tasks), limit)
        self.held_of = tasks
        self.holds_from = now if held == limit else now + HOLDS_EVERY_S


def take_back(pauses: Pauses) -> int:
    if not (pauses.queues or pauses.tasks or pauses.tenants):
        return 0
    return recall(
        sorted(pauses.queues),
        RECALLED_MAX,
        tasks=sorted(pauses.tasks),
        tenants=sorted(pauses.tenants),
    )


def say_ended() -> None:
    """Pauses whose time is over leave the table, each told once."""
    ended = fetch(
        "DELETE FROM tasks_pause WHERE until <= clock_timestamp() RETURNING kind, name", []
    )
    for kind, name in ended:
        log.warning("resumed", kind=kind, name=name, actor="until")


HELD_PAUSED = f"{HELD_BY_REASON} = '{Hold.PAUSED}'"


def hold_paused(tasks: Sequence[str], limit: int) -> int:
    """Take due jobs of these tasks out of the index of due work."""
    return execute(
        "UPDATE tasks_job SET hold_reason = %s, held_at = clock_timestamp()"
        f" WHERE id = ANY(ARRAY(SELECT id FROM tasks_job {DUE} AND task = ANY(%s)"
        " LIMIT %s FOR UPDATE SKIP LOCKED))",
        [Hold.PAUSED, list(tasks), limit],
    )


def release_paused(paused_tasks: Sequence[str], limit: int) -> int:
    """Let jobs go that were held for a pause of their task, unless it still lasts."""
    return execute(
        f"{kinds_of(HELD_PAUSED, 'task').rstrip(',')}"
        " UPDATE tasks_job SET hold_reason = ''"
        " WHERE id = ANY(ARRAY(SELECT job.id FROM kinds k, LATERAL ("
        f" SELECT id FROM tasks_job WHERE {HELD_PAUSED} AND queue = k.queue AND task = k.kind"
        " ORDER BY seq LIMIT %s FOR UPDATE SKIP LOCKED) AS job"
        " WHERE k.kind <> ALL(%s) LIMIT %s))",
        [limit, list(paused_tasks), limit],
    )
