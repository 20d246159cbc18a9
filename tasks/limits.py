"""How many jobs may go now by the rate of a downstream, its pauses and its circuit breaker.

One row per limit holds what the relays agree on. It is read and written inside the transaction
of a dispatch, under the lock of the downstream; what follows from it is decided by ``allowed``,
which asks nobody.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import structlog

from tasks import registry
from tasks.ledger import Dispatched
from tasks.sql import execute, fetch, storable
from tasks.topology import Queue

log = structlog.get_logger(__name__)

# After a silence a rate gives as many calls at once as it gives in this time, and at least one: so
# a second sees a tenth more than its share. Less would lose calls to the pauses between two looks
# of the relay.
BURST_S = 0.1
# A downstream that says "come back next week" is looked at again tomorrow.
LONGEST_PAUSE_S = 24 * 3600.0
REASON_MAX = 500  # characters
BreakerState = Literal["closed", "half open", "open"]
UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Rate:
    """Calls per second; ``burst``: how many at once after a silence."""

    per_s: float

    @property
    def burst(self) -> float:
        return max(1.0, self.per_s * BURST_S)


RATE_OF_UNKNOWN = Rate(1.0)


@dataclass(frozen=True)
class Status:
    """A limit at one moment of the database clock. The defaults: nothing was ever written."""

    tokens: float = math.inf  # when they were counted
    counted_ago_s: float = 0.0
    paused_s: float = 0.0  # from now; 0 is not paused
    is_open: bool = False  # the breaker; half open once open_s has come to 0
    open_s: float = 0.0
    is_probing: bool = False  # a probe is under way, or its outcome is not judged yet
    pause_reason: str = ""
    open_reason: str = ""
    openings: int = 0

    @property
    def breaker(self) -> BreakerState:
        if not self.is_open:
            return "closed"
        return "open" if self.open_s > 0 else "half open"


# --- in a dispatch -----------------------------------------------------------------------


def grant(queue: Queue, lane: str, wanted: int) -> int:
    """How many of ``wanted`` jobs may go now; the caller holds the lock of the downstream.

    Costs nothing for a queue without downstream, unless the lane is a task with its own rate.
    """
    limits = limits_of(queue, lane)
    if not limits or wanted <= 0:
        return max(0, wanted)
    found = statuses(list(limits))
    for name, rate in limits.items():
        obeys_breaker = name == queue.lock_name and has_breaker(queue)
        status = found.get(name, Status())
        wanted = allowed(status, wanted, rate=rate, obeys_breaker=obeys_breaker)
    return wanted


def spend(queue: Queue, lane: str, jobs: Sequence[Dispatched]) -> None:
    """Take the tokens of what was marked, in the same transaction; remember a probe."""
    if not jobs:
        return
    for name, rate in limits_of(queue, lane).items():
        if rate is not None:
            take_tokens(name, rate, len(jobs))
    if len(jobs) == 1 and has_breaker(queue):
        remember_probe(queue, jobs[0])


def limits_of(queue: Queue, lane: str) -> Mapping[str, Rate | None]:
    """The rows that a job of this queue and lane must respect, each with its rate."""
    found: dict[str, Rate | None] = {}
    if queue.downstream is not None:
        found[queue.lock_name] = rate_of(queue.downstream.rate)
    if lane:
        found[f"task:{lane}"] = rate_of_task(lane)
    return found


def has_breaker(queue: Queue) -> bool:
    return queue.downstream is not None and queue.downstream.breaker is not None


# --- decide ------------------------------------------------------------------------------


def allowed(
    status: Status, wanted: int, *, rate: Rate | None = None, obeys_breaker: bool = False
) -> int:
    """How many of ``wanted`` may go: none in a pause, one as a probe, else what tokens buy."""
    if status.paused_s > 0:
        return 0
    if obeys_breaker and status.is_open:
        if status.open_s > 0 or status.is_probing:
            return 0
        wanted = min(wanted, 1)
    if rate is not None:
        wanted = min(wanted, int(tokens_now(status, rate)))
    return max(0, wanted)


def tokens_now(status: Status, rate: Rate) -> float:
    refilled = status.tokens + max(0.0, status.counted_ago_s) * rate.per_s
    # Tenths do not add up to one; a hair's breadth must not cost a turn.
    return min(rate.burst, refilled + 1e-6)


def rate_of(text: str | float | None) -> Rate | None:
    """``"50/s"``, ``"6/m"``, ``"100/h"`` or calls per second. None and 0 are no limit."""
    if text is None:
        return None
    number, _, unit = str(text).partition("/")
    per_s = float(number) / UNITS_S[unit.strip()]
    return Rate(per_s) if per_s > 0 else None


def rate_of_task(name: str) -> Rate | None:
    """What the task declares. For one that this release does not know, a cautious guess: a relay of
    the release that does may run beside this one, or soon."""
    task = registry.task_of(name)
    if task is None:
        say_unknown(name)
        return RATE_OF_UNKNOWN
    return rate_of(getattr(task, "own_rate_limit", None))


@cache
def say_unknown(name: str) -> None:
    log.warning("rate_not_known", task=name)


# --- the rows ----------------------------------------------------------------------------

# Ended by an outcome that says something about the downstream. ``Fail`` does not: there the
# body knows that it is not to blame.
TELLING = "a.outcome IN ('succeeded', 'retry', 'failed') AND a.error_type <> 'tasks.errors.Fail'"
# Nothing but probes was claimed after ``open_until``.
PROBED = (
    "SELECT a.outcome, a.error_type FROM tasks_attempt a WHERE a.job_id = l.probe"  # noqa: S608
    f" AND a.started_at > l.open_until AND {TELLING}"
)
PROBE_LIVES = (
    "SELECT FROM tasks_job WHERE id = l.probe AND dispatch_no >= l.probe_dispatch_no"
    " AND (state = 'running' OR state = 'dispatched' AND l.probe_until > clock_timestamp())"
)
STATUS = (
    "SELECT name, tokens, extract(epoch FROM clock_timestamp() - tokens_at)::float8,"  # noqa: S608
    " greatest(0, extract(epoch FROM paused_until - clock_timestamp()))::float8,"
    " opened_at IS NOT NULL,"
    " greatest(0, extract(epoch FROM open_until - clock_timestamp()))::float8,"
    f" EXISTS ({PROBE_LIVES}) OR EXISTS ({PROBED}), pause_reason, open_reason, openings"
    " FROM tasks_limit l WHERE name = ANY(%s)"
)


def status_of(name: str) -> Status:
    return statuses([name]).get(name, Status())


def statuses(names: Sequence[str]) -> dict[str, Status]:
    """Of the limits that have a row."""
    return {name: Status(*values) for name, *values in fetch(STATUS, [list(names)])}


def take_tokens(name: str, rate: Rate, count: int) -> None:
    """Refill up to now, then take; a bucket without a row was full."""
    execute(
        "INSERT INTO tasks_limit (name, tokens, tokens_at) VALUES (%s, %s, clock_timestamp())"
        " ON CONFLICT (name) DO UPDATE SET tokens_at = clock_timestamp(), tokens = least(%s,"
        " tasks_limit.tokens + %s * greatest(0,"
        " extract(epoch FROM clock_timestamp() - tasks_limit.tokens_at)::float8)) - %s",
        [name, rate.burst - count, rate.burst, rate.per_s, count],
    )


def remember_probe(queue: Queue, job: Dispatched) -> bool:
    """False: the breaker is closed, and the job an ordinary one."""
    return bool(
        execute(
            "UPDATE tasks_limit SET probe = %s, probe_dispatch_no = %s,"
            " probe_until = clock_timestamp() + %s * interval '1 second'"
            " WHERE name = %s AND opened_at IS NOT NULL",
            [job.id, job.dispatch_no, queue.lease, queue.lock_name],
        )
    )


def pause(name: str, seconds: float, reason: str) -> None:
    """Let nothing of this limit go for ``seconds``, at most a day. A longer pause stays."""
    execute(
        "INSERT INTO tasks_limit AS l (name, tokens, tokens_at, paused_until, pause_reason)"
        # Filled up since the epoch: the bucket of a new row is full.
        " VALUES (%s, 0, 'epoch', clock_timestamp() + %s * interval '1 second', %s)"
        " ON CONFLICT (name) DO UPDATE SET pause_reason = CASE"
        " WHEN l.paused_until > excluded.paused_until THEN l.pause_reason"
        " ELSE excluded.pause_reason END,"
        " paused_until = greatest(l.paused_until, excluded.paused_until)",
        [name, bounded_s(seconds), storable(reason)[:REASON_MAX]],
    )


def resume(name: str) -> bool:
    """An operator knows better than the job that asked for the pause. False: there is none."""
    return bool(
        execute(
            "UPDATE tasks_limit SET paused_until = NULL, pause_reason = ''"
            " WHERE name = %s AND paused_until > clock_timestamp()",
            [name],
        )
    )


def bounded_s(seconds: float) -> float:
    return 0.0 if math.isnan(seconds) else min(max(seconds, 0.0), LONGEST_PAUSE_S)


def open_breaker(name: str, *, reason: str, open_s: float) -> bool:
    """Closed to open. False: it was open."""
    return bool(
        execute(
            "INSERT INTO tasks_limit AS l (name, tokens, tokens_at, opened_at, open_until,"
            " open_reason, openings) VALUES (%s, 0, 'epoch', clock_timestamp(),"
            " clock_timestamp() + %s * interval '1 second', %s, 1)"
            " ON CONFLICT (name) DO UPDATE SET opened_at = excluded.opened_at,"
            " open_until = excluded.open_until, open_reason = excluded.open_reason,"
            " openings = l.openings + 1, probe = NULL, probe_until = NULL"
            " WHERE l.opened_at IS NULL",
            [name, open_s, storable(reason)[:REASON_MAX]],
        )
    )


def reopen_breaker(name: str, *, reason: str, open_s: float) -> bool:
    """Half open to open, because the probe failed. False: there is no probe."""
    return bool(
        execute(
            "UPDATE tasks_limit SET openings = openings + 1, open_reason = %s,"
            " open_until = clock_timestamp() + %s * interval '1 second', probe = NULL,"
            " probe_until = NULL WHERE name = %s AND opened_at IS NOT NULL AND probe IS NOT NULL",
            [storable(reason)[:REASON_MAX], open_s, name],
        )
    )


def close_breaker(name: str) -> bool:
    return bool(
        execute(
            "UPDATE tasks_limit SET opened_at = NULL, open_until = NULL, open_reason = '',"
            " openings = 0, probe = NULL, probe_until = NULL, closed_at = clock_timestamp()"
            " WHERE name = %s AND opened_at IS NOT NULL",
            [name],
        )
    )


def probed(name: str) -> tuple[str, str] | None:
    """Outcome and error type of the probe that has ended. None: there is none to judge."""
    rows = fetch(
        f"SELECT a.* FROM tasks_limit l, LATERAL ({PROBED} LIMIT 1) a"  # noqa: S608
        " WHERE l.name = %s AND l.opened_at IS NOT NULL",
        [name],
    )
    return rows[0] if rows else None
