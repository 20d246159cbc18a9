"""The circuit breaker: when a downstream counts as broken, and when as whole again.

Closed, it counts failed runs. Open, nothing is sent, and what was sent and has not started is
taken back, so nobody spends an attempt. Half open, one job at a time probes. The state lies in
the row of the limit; whoever changes it holds the lock of the downstream, as a dispatch does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import structlog
from django.db import OperationalError, transaction
from psycopg.errors import LockNotAvailable

from tasks import ledger, limits
from tasks.limits import Status
from tasks.sql import fetch
from tasks.topology import Breaker, Downstream
from tasks.wiring import topology

log = structlog.get_logger(__name__)

# Runs that are looked at, newest first, for the share of those that failed. Beyond that the
# pace of the successes is assumed to have been the same.
RUNS_MAX = 1_000
LOOKS_EVERY_S = 1.0  # seconds between two calls of ``watch``
# Jobs that are taken back in one go; more follow in the next second.
RECALLED_MAX = 1_000


@dataclass(frozen=True)
class Runs:
    """What runs of one downstream came to lately. ``succeeded`` may be an estimate."""

    failed: int
    succeeded: int = 0
    last_error: str = ""

    @property
    def total(self) -> int:
        return self.failed + self.succeeded


# --- decide ------------------------------------------------------------------------------


def least_failures(breaker: Breaker) -> int:
    """With fewer it cannot open, whatever else ran."""
    return max(1, math.ceil(breaker.least_runs * breaker.failure_share))


def is_broken(breaker: Breaker, runs: Runs) -> bool:
    if runs.failed < least_failures(breaker) or runs.total < breaker.least_runs:
        return False
    return runs.failed >= breaker.failure_share * runs.total


def open_for_s(breaker: Breaker, openings: int) -> float:
    """``openings``: in a row, this one included. Each doubles the pause."""
    doubled = 2.0 ** min(openings - 1, 60)
    return min(breaker.open_s * doubled, max(breaker.longest_open_s, breaker.open_s))


# --- watch -------------------------------------------------------------------------------


def watch() -> frozenset[str]:
    """Open, reopen and close whatever has come to it. Once a second, by every relay.

    Names of the limits where nothing can go before the next look: nobody needs to try.
    """
    downstreams = topology().downstreams
    found = limits.statuses([downstream.limit_name for downstream in downstreams])
    for downstream in downstreams:
        try:
            watch_one(downstream, found.get(downstream.limit_name, Status()))
        except OperationalError as exc:
            if not isinstance(exc.__cause__, LockNotAvailable):
                raise
            log.warning("breaker_waits_for_lock", downstream=downstream.name)
    return frozenset(
        downstream.limit_name
        for downstream in downstreams
        if is_stopped(downstream, found.get(downstream.limit_name, Status()))
    )


def is_stopped(downstream: Downstream, status: Status) -> bool:
    """And will be at the next look: a pause is never shortened, and open ends by its time."""
    open_s = status.open_s if downstream.breaker is not None else 0.0
    return max(status.paused_s, open_s) > LOOKS_EVERY_S


def watch_one(downstream: Downstream, status: Status) -> None:
    breaker = downstream.breaker
    if status.paused_s > 0:
        recall(downstream)
    if breaker is None:
        return
    if status.is_open:
        watch_open(downstream, breaker)
    elif is_broken(breaker, runs_of(downstream, breaker)):
        open_one(downstream, breaker)


def open_one(downstream: Downstream, breaker: Breaker) -> None:
    """Counted again under the lock: another relay may have opened it, and a probe closed it."""
    with transaction.atomic():
        ledger.lock_limit(downstream.limit_name)
        runs = runs_of(downstream, breaker)
        if not is_broken(breaker, runs):
            return
        reason = reason_of(runs, breaker)
        open_s = open_for_s(breaker, limits.status_of(downstream.limit_name).openings + 1)
        # First taken back, then open: whatever starts afterwards is a probe.
        recalled = recall(downstream)
        opened = limits.open_breaker(downstream.limit_name, reason=reason, open_s=open_s)
    if opened:
        log.error(
            "breaker_opened",
            downstream=downstream.name,
            reason=reason,
            open_s=open_s,
            recalled=recalled,
        )


def watch_open(downstream: Downstream, breaker: Breaker) -> None:
    """Judge the probe; take back what nobody is to start, as a probe that no worker took."""
    with transaction.atomic():
        ledger.lock_limit(downstream.limit_name)
        status = limits.status_of(downstream.limit_name)
        answer = limits.probed(downstream.limit_name)
        if answer is not None:
            judge(downstream, breaker, status.openings, *answer)
        elif status.is_open and not status.is_probing:
            recall(downstream)


def judge(
    downstream: Downstream, breaker: Breaker, openings: int, outcome: str, error_type: str
) -> None:
    name = downstream.limit_name
    if outcome == "succeeded":
        if limits.close_breaker(name):
            log.warning("breaker_closed", downstream=downstream.name)
        return
    reason = f"a probe failed: {short(error_type)}"
    open_s = open_for_s(breaker, openings + 1)
    if limits.reopen_breaker(name, reason=reason, open_s=open_s):
        log.error("breaker_reopened", downstream=downstream.name, reason=reason, open_s=open_s)


def recall(downstream: Downstream) -> int:
    return ledger.recall(topology().calling(downstream), RECALLED_MAX)


def reason_of(runs: Runs, breaker: Breaker) -> str:
    return (
        f"{runs.failed} of {runs.total} runs failed in {breaker.over_s:g} s;"
        f" last: {short(runs.last_error)}"
    )


def short(error_type: str) -> str:
    return error_type.rpartition(".")[2] or "unknown"


# --- count -------------------------------------------------------------------------------

# What ran since the breaker closed; a run from before says nothing about the time after.
SINCE = (
    "a.finished_at > statement_timestamp() - %s * interval '1 second'"
    " AND a.started_at > coalesce((SELECT closed_at FROM tasks_limit WHERE name = %s), '-infinity')"
)


def runs_of(downstream: Downstream, breaker: Breaker) -> Runs:
    """Successes are only looked at when enough runs have failed: there are many more of them."""
    failed, last_error = failures_of(downstream, breaker)
    if failed < least_failures(breaker):
        return Runs(failed)
    return Runs(failed, successes_of(downstream, breaker), last_error)


def failures_of(downstream: Downstream, breaker: Breaker) -> tuple[int, str]:
    """How many runs failed lately, counted up to ``RUNS_MAX``, and with what the last one did."""
    rows = fetch(
        "SELECT count(*), coalesce((array_agg(error_type))[1], '') FROM ("  # noqa: S608
        " SELECT a.error_type FROM tasks_attempt a JOIN tasks_job j ON j.id = a.job_id"
        f" WHERE a.outcome IN ('retry', 'failed') AND a.error_type <> 'tasks.errors.Fail'"
        f" AND {SINCE} AND j.queue = ANY(%s) ORDER BY a.finished_at DESC LIMIT %s) f",
        [
            breaker.over_s, downstream.limit_name, topology().calling(downstream), RUNS_MAX,
        ],
    )  # fmt: skip
    return rows[0]


def successes_of(downstream: Downstream, breaker: Breaker) -> int:
    """Among the newest runs of all queues, and in proportion where these are a shorter time."""
    name = downstream.limit_name
    rows = fetch(
        "SELECT count(*) FILTER (WHERE a.outcome = 'succeeded' AND j.queue = ANY(%s)"  # noqa: S608
        f" AND {SINCE}), count(*),"
        " extract(epoch FROM clock_timestamp() - min(a.finished_at))::float8,"
        " least(%s, extract(epoch FROM clock_timestamp()"
        " - (SELECT closed_at FROM tasks_limit WHERE name = %s))::float8)"
        " FROM (SELECT * FROM tasks_attempt ORDER BY id DESC LIMIT %s) a"
        " JOIN tasks_job j ON j.id = a.job_id",
        [topology().calling(downstream), breaker.over_s, name, breaker.over_s, name, RUNS_MAX],
    )
    succeeded, seen, covered_s, asked_s = rows[0]
    if seen < RUNS_MAX or covered_s >= asked_s:
        return int(succeeded)
    return int(succeeded * asked_s / max(covered_s, 0.001))
