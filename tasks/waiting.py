"""Why a job waits, in one word and one sentence, and how long yet where that can be said.

Other tenants appear only as time: neither their names nor how many jobs they have are told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from math import exp
from uuid import UUID

from tasks import fleet, ledger, limits, pauses
from tasks.dispatch import Slots, in_flight
from tasks.limits import Rate
from tasks.models import Job
from tasks.pace import SHARED_OVER_S
from tasks.pauses import Paused
from tasks.sql import fetch
from tasks.states import Hold, Pausable, State
from tasks.wiring import topology

# Jobs and tenants that are counted. With more ahead nobody can say when the turn comes.
AHEAD_MAX = 2_000
TENANTS_MAX = 200


class WaitsFor(StrEnum):
    CAPACITY = "capacity"  # a free slot of a worker
    LIMIT = "limit"  # concurrency or rate of its downstream, or its task's own rate
    ORDER = "order"  # an older job of its ordering key
    PAUSE = "pause"  # an operator, or a downstream that said when to come back
    TIME = "time"  # run_at: scheduled, or the pause before a retry
    BREAKER = "breaker"  # its downstream fails
    HOLD = "hold"  # no worker can run it


@dataclass(frozen=True)
class Waiting:
    """``estimate_s``: until it starts; None where that cannot be known.

    ``behind``: the job that must end first, where it is one; of the same tenant.
    """

    waits_for: WaitsFor
    detail: str
    estimate_s: float | None = None
    behind: UUID | None = None


def waiting_for(job: Job) -> Waiting | None:
    """None: it does not wait. The first reason that would still hold it if the others ended."""
    if job.state == State.DISPATCHED:
        return Waiting(WaitsFor.CAPACITY, "Sent; it starts when a worker has a free slot.")
    if job.state != State.QUEUED:
        return None
    for look in REASONS:
        found = look(job)
        if found is not None:
            return found
    return for_its_turn(job)


# --- a reason of its own -----------------------------------------------------------------


def for_a_hold(job: Job) -> Waiting | None:
    match job.hold_reason:
        case "":
            return None
        case Hold.PAUSED:
            return for_a_pause(job) or Waiting(WaitsFor.PAUSE, "Its task was paused; it goes soon.")
        case Hold.ORDER:
            return for_its_order(job) or Waiting(WaitsFor.ORDER, "It is next; it goes soon.")
        case Hold.TASK_UNKNOWN:
            return Waiting(WaitsFor.HOLD, "No live worker of its queue knows the task.")
        case _:
            return Waiting(WaitsFor.HOLD, "Its payload does not fit the task of any live worker.")


def for_its_order(job: Job) -> Waiting | None:
    """Held, or before a relay has seen it. Names the head of its key: all others wait for that."""
    if job.ordering_key is None:
        return None
    rows = fetch(
        "SELECT id, state FROM tasks_job WHERE queue = %s AND tenant = %s AND ordering_key = %s"
        " AND state IN ('queued', 'dispatched', 'running')"
        " AND (seq < %s OR state <> 'queued') ORDER BY seq LIMIT 1",
        [job.queue, job.tenant, job.ordering_key, job.seq],
    )
    if not rows:
        return None
    head, state = rows[0]
    detail = f"Job {head} of its ordering key goes first and is {state}."
    return Waiting(WaitsFor.ORDER, detail, behind=head)


def for_its_time(job: Job) -> Waiting | None:
    if job.due:
        return None
    rows = fetch("SELECT extract(epoch FROM %s - clock_timestamp())::float8", [job.run_at])
    again = f" for run {job.attempts + 1}" if job.attempts else ""
    return Waiting(
        WaitsFor.TIME, f"Not before {job.run_at:%Y-%m-%d %H:%M:%S %Z}{again}.", max(0.0, rows[0][0])
    )


# --- somebody stopped it -----------------------------------------------------------------


def for_a_pause(job: Job) -> Waiting | None:
    paused = pauses.on(queue=job.queue, task=job.task, tenant=job.tenant)
    return None if paused is None else Waiting(WaitsFor.PAUSE, sentence_of(paused), paused.left_s)


def sentence_of(paused: Paused) -> str:
    """A tenant's own pause may have a reason of its own; the name is never told."""
    what = {
        Pausable.QUEUE: f"The queue {paused.name} is paused",
        Pausable.TASK: f"The task {paused.name} is paused",
        Pausable.TENANT: "All jobs of the tenant are paused",
    }[paused.kind]
    until = f" until {paused.until:%Y-%m-%d %H:%M:%S %Z}" if paused.until else ""
    return f"{what}{until}{': ' + paused.reason if paused.reason else ''}."


def for_its_downstream(job: Job) -> Waiting | None:
    downstream = topology().queue(job.queue).downstream
    if downstream is None:
        return None
    status = limits.status_of(downstream.limit_name)
    if status.paused_s > 0:
        said = f"{downstream.name} asked us to come back later."
        return Waiting(WaitsFor.PAUSE, said, status.paused_s)
    if downstream.breaker is None or not status.is_open:
        return None
    if status.open_s > 0:
        then = f"it is tried again in {status.open_s:.0f} s"
    else:
        then = "one job at a time tries it"
    why = f"{downstream.name} fails ({status.open_reason}); {then}."
    return Waiting(WaitsFor.BREAKER, why)


# --- its turn ----------------------------------------------------------------------------


def for_a_worker(job: Job) -> Waiting | None:
    if capacity_of(job.queue).capacity:
        return None
    return Waiting(WaitsFor.CAPACITY, f"No live worker serves the queue {job.queue}.")


def for_a_limit(job: Job) -> Waiting | None:
    """The rate of its task or downstream is used up, or all calls at once are under way."""
    queue = topology().queue(job.queue)
    for name, rate in limits.limits_of(queue, job.lane).items():
        if rate is not None and limits.tokens_now(limits.status_of(name), rate) < 1:
            what = job.task if name.startswith("task:") else name.partition(":")[2]
            detail = f"{what} may be called {in_words(rate)}."
            return Waiting(WaitsFor.LIMIT, detail, estimate_s(job, most_per_s=rate.per_s))
    loads = ledger.in_flight(topology().sharing(queue)) if queue.limit is not None else {}
    if queue.limit is None or in_flight(loads) < queue.limit:
        return None
    assert queue.downstream is not None
    detail = f"All {queue.limit} calls that {queue.downstream.name} may get at once are under way."
    return Waiting(WaitsFor.LIMIT, detail, estimate_s(job))


def for_its_tenant(job: Job) -> Waiting | None:
    rows = fetch("SELECT max_running FROM tasks_tenant WHERE name = %s", [job.tenant])
    own = rows[0][0] if rows else None
    most = topology().queue(job.queue).max_running_per_tenant if own is None else own
    if most is None or ledger.in_flight_of_tenants(job.queue).get(job.tenant, 0) < most:
        return None
    return Waiting(WaitsFor.LIMIT, f"No more than {most} jobs of its tenant may be under way.")


def for_its_turn(job: Job) -> Waiting:
    return Waiting(WaitsFor.CAPACITY, "Others are before it.", estimate_s(job))


def in_words(rate: Rate) -> str:
    """``"50 times a second"``, in the largest unit that is a whole number."""
    for seconds, unit in ((1.0, "a second"), (60.0, "a minute"), (3600.0, "an hour")):
        if (times := rate.per_s * seconds) >= 1 and abs(times - round(times)) < 1e-6:
            return f"{round(times)} times {unit}"
    return f"every {1 / rate.per_s:.0f} seconds"


REASONS: tuple[Callable[[Job], Waiting | None], ...] = (
    for_a_hold, for_its_time, for_its_order, for_a_pause, for_its_downstream, for_a_worker,
    for_a_limit, for_its_tenant,
)  # fmt: skip


def capacity_of(queue: str) -> Slots:
    return fleet.slots().get(queue, Slots())


# --- how long ----------------------------------------------------------------------------


def estimate_s(job: Job, most_per_s: float | None = None) -> float | None:
    """What is likely to go before it, at the pace of the queue. None: unknown."""
    per_s = pace_of(job.queue)
    if most_per_s is not None:
        per_s = most_per_s if per_s is None or job.lane else min(per_s, most_per_s)
    before = ahead(job)
    if per_s is None or before is None:
        return None
    return round((before + 1) / per_s, 1)


def pace_of(queue: str) -> float | None:
    rows = fetch(
        "SELECT per_s, extract(epoch FROM clock_timestamp() - per_s_at)::float8"
        " FROM tasks_queuestate WHERE queue = %s",
        [queue],
    )
    return pace_now(*rows[0]) if rows else None


def pace_now(per_s: float, age_s: float) -> float | None:
    """Jobs per second. None: nothing has gone for the time of several jobs.

    An average fades while nothing goes; between two jobs of a slow queue it would fade too far.
    """
    if per_s <= 0 or age_s > SHARED_OVER_S + 3 / per_s:
        return None
    age_s = max(age_s, 0.001)
    return max(per_s * exp(-age_s / SHARED_OVER_S), min(per_s, 1 / age_s))


def ahead(job: Job) -> int | None:
    """Jobs that go before it: tenants take turns, so of each other one as many as of its own.

    None: more than anybody counts.
    """
    own, tenants, all_waiting = fetch(AHEAD, parameters_of(job))[0]
    if own >= AHEAD_MAX or tenants >= TENANTS_MAX:
        return None
    in_turns = own * tenants + tenants - 1
    return int(min(in_turns, all_waiting)) if all_waiting < AHEAD_MAX else int(in_turns)


DUE = "queue = %(queue)s AND lane = %(lane)s AND state = 'queued' AND due AND hold_reason = ''"
OWN = f"{DUE} AND tenant = %(tenant)s"
# Each count in the order of the index of due work, where it stops at its bound.
AHEAD = (
    f"WITH RECURSIVE waiting AS ((SELECT tenant FROM tasks_job WHERE {DUE}"  # noqa: S608
    " ORDER BY tenant LIMIT 1) UNION ALL"
    f" SELECT (SELECT j.tenant FROM tasks_job j WHERE {DUE} AND j.tenant > waiting.tenant"
    " ORDER BY j.tenant LIMIT 1) FROM waiting WHERE waiting.tenant IS NOT NULL)"
    f" SELECT (SELECT count(*) FROM (SELECT FROM tasks_job WHERE {OWN}"
    " AND priority > %(priority)s ORDER BY priority DESC, seq LIMIT %(ahead)s) AS higher)"
    f" + (SELECT count(*) FROM (SELECT FROM tasks_job WHERE {OWN}"
    " AND priority = %(priority)s AND seq < %(seq)s ORDER BY seq LIMIT %(ahead)s) AS older),"
    " (SELECT count(*) FROM (SELECT FROM waiting WHERE tenant IS NOT NULL LIMIT %(tenants)s) AS t),"
    f" (SELECT count(*) FROM (SELECT FROM tasks_job WHERE {DUE} ORDER BY tenant"
    " LIMIT %(ahead)s) AS a) - 1"
)


def parameters_of(job: Job) -> dict[str, object]:
    named = {name: getattr(job, name) for name in ("queue", "lane", "tenant", "priority", "seq")}
    return {**named, "ahead": AHEAD_MAX, "tenants": TENANTS_MAX}
