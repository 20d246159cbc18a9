"""What waits, what runs and who can run it, per queue.

Cheap on large tables: each statement uses the partial indexes of unfinished work and stops
counting at ``COUNT_MAX``. A figure of ``COUNT_MAX`` means "that many or more".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tasks import limits
from tasks.fleet import LIVE_FOR_S
from tasks.ledger import HELD_BY_REASON, INCOMPATIBLE, UNKNOWN, in_flight, queues_with_due_jobs
from tasks.limits import BreakerState, Status
from tasks.sql import fetch
from tasks.states import Hold
from tasks.topology import Downstream
from tasks.wiring import topology

# Beyond this nobody needs the exact figure, and counting it would be the load.
COUNT_MAX = 10_000
# Undeclared queues work too, but must not let the metrics grow without bound.
QUEUES_MAX = 200


@dataclass(frozen=True)
class QueueLoad:
    """One queue at this moment. Workers that drain count as capacity no more."""

    name: str
    due: int = 0
    scheduled: int = 0
    dispatched: int = 0
    running: int = 0
    oldest_due_s: float = 0.0
    held: int = 0  # no live worker can run them
    ordered: int = 0  # behind an older job of their ordering key
    paused: int = 0
    dead_letters: int = 0
    workers: int = 0
    capacity: int = 0
    reconnects: int = 0

    @property
    def in_flight(self) -> int:
        return self.dispatched + self.running


def queue_loads() -> list[QueueLoad]:
    """Every declared queue and every other with work or a worker, by name."""
    due = due_by_queue()
    scheduled = count_by_queue("state = 'queued' AND NOT due")
    held = unrunnable_by_queue()
    ordered = count_by_queue(f"{HELD_BY_REASON} = '{Hold.ORDER}'")
    paused = count_by_queue(f"{HELD_BY_REASON} = '{Hold.PAUSED}'")
    dispatched = count_by_queue("state = 'dispatched'")
    running = count_by_queue("state = 'running'")
    dead_letters = count_by_queue("dead_letter")
    workers = workers_by_queue()
    names = set(topology().queues).union(
        due, scheduled, held, ordered, paused, dispatched, running, dead_letters, workers
    )
    return [
        QueueLoad(
            name,
            due=due.get(name, (0, 0.0))[0],
            oldest_due_s=due.get(name, (0, 0.0))[1],
            scheduled=scheduled.get(name, 0),
            held=held.get(name, 0),
            ordered=ordered.get(name, 0),
            paused=paused.get(name, 0),
            dispatched=dispatched.get(name, 0),
            running=running.get(name, 0),
            dead_letters=dead_letters.get(name, 0),
            workers=workers.get(name, NO_WORKERS)[0],
            capacity=workers.get(name, NO_WORKERS)[1],
            reconnects=workers.get(name, NO_WORKERS)[2],
        )
        for name in sorted(names)[:QUEUES_MAX]
    ]


@dataclass(frozen=True)
class LimitState:
    """A downstream, or a task with a rate of its own, at this moment."""

    kind: Literal["downstream", "task"]
    name: str
    status: Status
    queues: list[str] = field(default_factory=list)
    max_concurrency: int | None = None
    in_flight: int | None = None
    rate: str | None = None
    tokens: float | None = None
    has_breaker: bool = False


def limit_states() -> list[LimitState]:
    """Every downstream of the topology, then the tasks whose rate was used, by name."""
    of_tasks = fetch(
        "SELECT name FROM tasks_limit WHERE name LIKE 'task:%%' ORDER BY name LIMIT %s",
        [QUEUES_MAX],
    )
    names = [name for (name,) in of_tasks]
    downstreams = topology().downstreams
    found = limits.statuses([*names, *(downstream.limit_name for downstream in downstreams)])
    return [
        *(of_downstream(d, found.get(d.limit_name, Status())) for d in downstreams),
        *(of_task(name, found[name]) for name in names if name in found),
    ]


def of_downstream(downstream: Downstream, status: Status) -> LimitState:
    queues = topology().calling(downstream)
    loads = in_flight(queues).values()
    rate = limits.rate_of(downstream.rate)
    return LimitState(
        "downstream",
        downstream.name,
        status,
        queues=queues,
        max_concurrency=downstream.max_concurrency,
        in_flight=sum(dispatched + running for dispatched, running in loads),
        rate=downstream.rate,
        tokens=limits.tokens_now(status, rate) if rate else None,
        has_breaker=downstream.breaker is not None,
    )


def of_task(limit_name: str, status: Status) -> LimitState:
    name = limit_name.removeprefix("task:")
    rate = limits.rate_of_task(name)
    return LimitState(
        "task",
        name,
        status,
        rate=f"{rate.per_s:g}/s" if rate else None,
        tokens=limits.tokens_now(status, rate) if rate else None,
    )


def breakers() -> dict[str, BreakerState]:
    """By queue: the breaker of its downstream, where it has one."""
    downstreams = [d for d in topology().downstreams if d.breaker is not None]
    found = limits.statuses([downstream.limit_name for downstream in downstreams])
    return {
        queue: found.get(downstream.limit_name, Status()).breaker
        for downstream in downstreams
        for queue in topology().calling(downstream)
    }


def due_by_queue() -> Mapping[str, tuple[int, float]]:
    """How many jobs are due, and the age in seconds of the oldest of those that were counted."""
    rows = fetch(
        "SELECT name, counted, oldest FROM unnest(%s::text[]) AS name, LATERAL ("
        " SELECT count(*) AS counted,"
        " extract(epoch FROM clock_timestamp() - min(run_at))::float8 AS oldest FROM ("
        " SELECT run_at FROM tasks_job WHERE queue = name AND state = 'queued' AND due"
        " AND hold_reason = '' LIMIT %s) AS first) AS waiting",
        [queues_with_due_jobs()[:QUEUES_MAX], COUNT_MAX],
    )
    return {queue: (counted, max(0.0, oldest or 0.0)) for queue, counted, oldest in rows}


def count_by_queue(condition: str) -> Mapping[str, int]:
    """``condition`` must be that of a partial index, word by word, and holds no input."""
    rows = fetch(
        "SELECT queue, count(*) FROM ("  # noqa: S608  (the condition is written in this module)
        f" SELECT queue FROM tasks_job WHERE {condition} LIMIT %s) AS counted GROUP BY queue",
        [COUNT_MAX],
    )
    return dict(rows)


def unrunnable_by_queue() -> Mapping[str, int]:
    """What no live worker can run, each reason by the index of its own."""
    unknown = count_by_queue(UNKNOWN)
    incompatible = count_by_queue(INCOMPATIBLE)
    return Counter(unknown) + Counter(incompatible)


NO_WORKERS = (0, 0, 0)


def workers_by_queue() -> Mapping[str, tuple[int, int, int]]:
    """Live workers, their capacity and their reconnects. One that serves two queues counts for
    both."""
    rows = fetch(
        "SELECT queue, count(*), sum(capacity), sum(reconnects) FROM tasks_worker,"
        " jsonb_array_elements_text(queues) AS queue"
        " WHERE stopped_at IS NULL AND NOT draining"
        " AND last_beat > clock_timestamp() - %s * interval '1 second' GROUP BY queue",
        [LIVE_FOR_S],
    )
    return {queue: (workers, capacity, again) for queue, workers, capacity, again in rows}


def live_relays() -> int:
    return int(
        fetch(
            "SELECT count(*) FROM tasks_relay"
            " WHERE last_beat > clock_timestamp() - %s * interval '1 second'",
            [LIVE_FOR_S],
        )[0][0]
    )


def parked_messages() -> int:
    rows = fetch(
        "SELECT count(*) FROM (SELECT FROM tasks_parkedmessage LIMIT %s) AS counted", [COUNT_MAX]
    )
    return int(rows[0][0])
