"""Who is alive: relays and workers, as far as their rows tell."""

from __future__ import annotations

from uuid import UUID

from tasks.dispatch import Slots
from tasks.ledger import execute, fetch

# Seconds without a beat after which a process counts as gone: three beats of 5 s.
LIVE_FOR_S = 15


def slots() -> dict[str, Slots]:
    """Per queue: the capacity of its live workers, and how much of it is free."""
    rows = fetch(
        "SELECT q, sum(capacity)::int, sum(greatest(capacity - busy, 0))::int"
        " FROM tasks_worker, jsonb_array_elements_text(queues) q"
        " WHERE stopped_at IS NULL AND NOT draining"
        " AND last_beat > clock_timestamp() - %s * interval '1 second' GROUP BY q",
        [LIVE_FOR_S],
    )
    return {queue: Slots(capacity, free) for queue, capacity, free in rows}


def relay_beats(relay_id: UUID, host: str, pid: int, release: str) -> None:
    """Insert or renew a relay's row; rows of relays that died long ago go with it."""
    execute(
        "INSERT INTO tasks_relay (id, host, pid, release, sleeping, started_at, last_beat)"
        " VALUES (%s, %s, %s, %s, false, clock_timestamp(), clock_timestamp())"
        " ON CONFLICT (id) DO UPDATE SET last_beat = clock_timestamp()",
        [relay_id, host, pid, release],
    )
    execute("DELETE FROM tasks_relay WHERE last_beat < clock_timestamp() - interval '1 hour'", [])


def relay_sleeps(relay_id: UUID, sleeping: bool) -> None:
    execute("UPDATE tasks_relay SET sleeping = %s WHERE id = %s", [sleeping, relay_id])


def relay_leaves(relay_id: UUID) -> None:
    execute("DELETE FROM tasks_relay WHERE id = %s", [relay_id])
