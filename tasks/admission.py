"""Whether a queue takes one more job, and what to tell whom it does not.

The decision itself is part of the insert (``accept.py``, ``room.py``). Here is what surrounds
it: the sample it relies on, the last places of a small room, displacing, and ``Retry-After``.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from uuid import UUID

import structlog
from django.db import DatabaseError, OperationalError, connection, transaction

from tasks import accept, ledger, metrics, pauses, room
from tasks.accept import Insertion, NewJob
from tasks.errors import QueueClosed, Rejected
from tasks.room import Bounds, Look
from tasks.states import Pausable, Refusal
from tasks.topology import Queue
from tasks.wiring import topology

log = structlog.get_logger(__name__)

UNBOUNDED = Bounds(None, None, None, at_once=0)
# A worker's slots, and as much again on the broker: so many start at once.
AT_ONCE_PER_SLOT = 2
ACTOR = "admission"

_waived: ContextVar[bool] = ContextVar("tasks_admission_waived", default=False)


@contextmanager
def waived() -> Iterator[None]:
    """For what follows from accepted work and has nobody to come back: it is always accepted."""
    token = _waived.set(True)
    try:
        yield
    finally:
        _waived.reset(token)


def is_waived() -> bool:
    return _waived.get()


def bounds_of(name: str) -> Bounds | None:
    """What the topology says of this queue; None when it says nothing."""
    queue = topology().queue(name)
    if not queue.is_bounded:
        return None
    return Bounds(
        max_waiting=queue.max_waiting,
        max_per_tenant=queue.max_waiting_per_tenant,
        max_wait_s=queue.max_wait_s,
        at_once=AT_ONCE_PER_SLOT * queue.concurrency * queue.replicas,
    )


def insert(job: NewJob) -> Insertion:
    """The statement that inserts, with as much of admission as the job is subject to."""
    if is_waived():
        return accept.accept(job)
    bounds = bounds_of(job.queue)
    if bounds is None:
        return accept.accept_if_open(job)
    # Inside a caller's transaction nobody may be kept waiting: no line there.
    return accept.accept_if_room(job, bounds, to_the_end=connection.in_atomic_block)


def insert_many(jobs: Sequence[NewJob], *, own_transaction: bool) -> set[UUID]:
    """As ``insert``, for many; the ids of those that were inserted.

    ``own_transaction``: no caller's, so others may wait for its end.
    """
    if is_waived():
        return accept.accept_many(jobs, always=True)
    bounds = {name: bounds_of(name) for name in sorted({job.queue for job in jobs})}
    limits = {name: bound for name, bound in bounds.items() if bound is not None}
    if not limits:
        return accept.accept_many(jobs)
    for name in limits if own_transaction else ():
        accept.line_up(name, patience_ms=accept.MANY_LOCK_TIMEOUT_MS)
    return accept.accept_many_if_room(jobs, limits)


def insert_otherwise(job: NewJob) -> bool:
    """For a job that was not inserted though its key is free. False: try ``insert`` again.

    Raises Rejected when the queue does not take it.
    """
    bounds = bounds_of(job.queue) or UNBOUNDED
    look = room.look(job.queue, job.tenant, bounds)
    reason = why_not(look, bounds)
    if reason is None:
        return insert_in_line(job, bounds)
    if reason is not Refusal.CLOSED:
        if look.sample_is_old and refresh(job.queue):
            return False
        if topology().queue(job.queue).policy == "shed" and displace(job):
            return True
    raise rejection(job, look, bounds, reason)


def why_not(look: Look, bounds: Bounds) -> Refusal | None:
    if look.closed:
        return Refusal.CLOSED
    if bounds.max_waiting is not None and look.waiting >= bounds.max_waiting:
        return Refusal.QUEUE_FULL
    if look.waiting >= look.expected_room:
        return Refusal.LONG_WAIT
    if bounds.max_per_tenant is not None and look.tenant_waiting >= bounds.max_per_tenant:
        return Refusal.TENANT_FULL
    return None


def insert_in_line(job: NewJob, bounds: Bounds) -> bool:
    """Near the end of a small room, one after the other; each sees all those before it."""
    if connection.in_atomic_block or bounds is UNBOUNDED:
        return False
    with transaction.atomic():
        accept.line_up(job.queue)
        return accept.accept_if_room(job, bounds, to_the_end=True).happened


def displace(job: NewJob) -> bool:
    """Put the job into the place of a less important one of its tenant."""
    with transaction.atomic():
        victim = accept.lock_less_important(job)
        if victim is None:
            return False
        ledger.cancel(victim, actor=ACTOR, reason=Refusal.SHED)
        happened = accept.accept_if_open(job).happened
        if not happened:
            transaction.set_rollback(True)
    if happened:
        log.info("job_shed", job_id=str(victim), queue=job.queue, by=str(job.id))
        metrics.rejected(job.queue, job.tenant, Refusal.SHED)
    return happened


# --- when to come again -------------------------------------------------------------------

# Seconds to wait when nothing leaves the queue: nobody knows when that ends.
STANDSTILL_RETRY_AFTER_S = 30
# Seconds. Beyond that nobody can know, and callers who will not come must not keep others away.
PROMISED_AT_MOST_S = 600.0
# Too late costs nothing, because the queue has enough to do meanwhile; too early is in vain.
CAUTION = 1.25
# Seconds until a place that became free is seen: the time between two samples.
SEEN_AFTER_S = 0.5
LOCK_PATIENCE_MS = 20


def rejection(job: NewJob, look: Look, bounds: Bounds, reason: Refusal) -> Rejected:
    if reason is Refusal.CLOSED:
        return QueueClosed(reason, whole_seconds(look.opens_in_s), queue=job.queue)
    paused = pauses.on(queue=job.queue, task=job.task, tenant=job.tenant)
    if paused is not None and (reason is Refusal.TENANT_FULL or paused.kind is Pausable.QUEUE):
        return Rejected(reason, whole_seconds(paused.left_s), queue=job.queue)
    if reason is Refusal.TENANT_FULL:
        over = look.tenant_waiting - (bounds.max_per_tenant or 0) + 1
        place, rate = job.tenant, look.rate / max(1, look.tenants)
    else:
        limit = min(bounds.max_waiting or room.NO_BOUND, look.expected_room)
        over, place, rate = look.waiting - limit + 1, None, look.rate
    if rate <= 0:
        return Rejected(reason, STANDSTILL_RETRY_AFTER_S, queue=job.queue)
    each_s = CAUTION / rate
    after_s = promised_s(job, place, first_s=over * each_s, each_s=each_s)
    return Rejected(reason, whole_seconds(after_s), queue=job.queue)


def whole_seconds(after_s: float | None) -> int:
    if after_s is None:
        return STANDSTILL_RETRY_AFTER_S
    return max(1, math.ceil(min(after_s, PROMISED_AT_MOST_S)))


def promised_s(job: NewJob, place: str | None, *, first_s: float, each_s: float) -> float:
    """Seconds until the caller's turn comes: each refused one gets a later one.

    Told the same, a crowd would come back as one, and nearly all of it in vain. Who comes before
    its turn keeps it.
    """
    kept_s = PROMISES.left_s(job)
    if kept_s is not None:
        return kept_s
    if connection.in_atomic_block:  # the row would stay locked for all the others
        return first_s
    try:
        turn_s = room.promise(
            job.queue, place, first_s=first_s, each_s=each_s, at_most_s=PROMISED_AT_MOST_S,
            patience_ms=LOCK_PATIENCE_MS,
        )  # fmt: skip
    except OperationalError:  # somebody keeps the row locked
        return first_s
    after_s = turn_s + SEEN_AFTER_S if turn_s > 1 else turn_s
    PROMISES.keep(job, after_s)
    return after_s


class Promises:
    """The times that this process has promised lately, by key."""

    AT_MOST = 10_000

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until: OrderedDict[int, float] = OrderedDict()

    def keep(self, job: NewJob, after_s: float) -> None:
        with self._lock:
            self._until[hash((job.tenant, job.key))] = time.monotonic() + after_s
            while len(self._until) > self.AT_MOST:
                self._until.popitem(last=False)

    def left_s(self, job: NewJob) -> float | None:
        """None when it has come, or none was promised."""
        with self._lock:
            until = self._until.get(hash((job.tenant, job.key)), 0.0)
        left_s = until - time.monotonic()
        return left_s if left_s > 0 else None


PROMISES = Promises()


# --- the sample ---------------------------------------------------------------------------


def refresh(name: str, *, older_than_s: float = room.SAMPLE_KEEPS_S) -> bool:
    """Count anew what waits in a queue, outside of a transaction, one caller at a time.

    False: the last sample is young, somebody else is at it, or the database refused.
    """
    bounds = bounds_of(name)
    if bounds is None or connection.in_atomic_block:
        return False
    try:
        return sample(name, bounds, older_than_s=older_than_s) is not None
    except DatabaseError as exc:  # whoever asked has been served already
        log.warning("sample_failed", queue=name, error=str(exc))
        return False


def sample(name: str, bounds: Bounds, *, older_than_s: float) -> int | None:
    """``room.take_sample``, the first one too."""
    waiting = room.take_sample(name, bounds, older_than_s=older_than_s)
    if waiting is None and room.start_sampling(name):
        waiting = room.take_sample(name, bounds, older_than_s=older_than_s)
    return waiting


# Seconds between two samples of a queue: of one in which jobs wait, and of one without.
BUSY_EVERY_S = 0.25
QUIET_EVERY_S = 1.0
# Part of its time that a relay may spend on them.
SHARE_OF_TIME = 0.05


class Sampler:
    """Keeps the samples of all bounded queues young. Any number of relays may have one."""

    def __init__(self) -> None:
        self._due_at: dict[str, float] = {}

    def run(self) -> None:
        """Take those samples that are due. Returns soon and waits for no lock."""
        for queue in topology().queues.values():
            if queue.is_bounded and time.monotonic() >= self._due_at.get(queue.name, 0.0):
                self._due_at[queue.name] = self._sample(queue)

    def _sample(self, queue: Queue) -> float:
        """When the next one is due."""
        began = time.monotonic()
        bounds = bounds_of(queue.name)
        assert bounds is not None
        waiting = sample(queue.name, bounds, older_than_s=BUSY_EVERY_S / 2)
        ended = time.monotonic()
        every_s = QUIET_EVERY_S if waiting == 0 else BUSY_EVERY_S
        return ended + max(every_s, (ended - began) / SHARE_OF_TIME)
