"""Accepting jobs: validate, name the intent, insert or find the one that is there already.

Everything happens in the caller's transaction and nothing talks to the broker: a rollback
leaves no job, a broker that is down delays nobody.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import batched
from typing import Any, Literal
from uuid import UUID

from celery.local import Proxy
from django.db import OperationalError, connection, transaction
from psycopg.errors import DeadlockDetected, LockNotAvailable

from tasks import accept as acceptance
from tasks import admission, metrics, sql, wake
from tasks.accept import Insertion, NewJob, Owner
from tasks.errors import (
    InvalidPayload,
    KeyConflict,
    QueueClosed,
    Rejected,
    TasksError,
    UnknownTask,
)
from tasks.keys import check_key, key_from_template, window_keys
from tasks.payload import MAX_PAYLOAD_BYTES, differing_fields, encode, fingerprint
from tasks.registry import did_you_mean, ledger_tasks, task_of
from tasks.seats import pauses, seat
from tasks.signature import signature_of
from tasks.states import TERMINAL, Refusal, State
from tasks.strict_json import check_json, dumps
from tasks.wiring import topology

OnConflict = Literal["return", "replace"]

PRIORITY_RANGE = range(-100, 101)
HEADERS_MAX_BYTES = 16 * 1024
NAME_MAX = 100  # characters of a tenant, as in the column
# Rows of one statement: large enough to hide the round trip, small enough for one answer.
CHUNK = 1000
# A racer saw nothing to read back because the other rolled back: more than twice in a row
# means that somebody retries in a loop.
READ_BACK_TRIES = 5


@dataclass(frozen=True)
class Enqueued:
    """The answer. ``created`` is False for a repeat: same id, nothing new."""

    job_id: UUID
    created: bool
    state: State
    key: str
    key_expires_at: datetime
    derived: bool = False  # the key came from the content (``dedupe_window``)


@dataclass(frozen=True)
class Refused:
    """The answer to an item of ``enqueue_many`` that was not accepted."""

    error: TasksError


@dataclass(frozen=True)
class Item:
    """One job of ``enqueue_many``."""

    payload: Mapping[str, Any]
    key: str | None = None
    tenant: str = ""
    priority: int | None = None  # the task's own, which is 0 unless it says so
    run_at: datetime | None = None
    start_by: datetime | None = None
    ordering_key: str | None = None
    on_conflict: OnConflict = "return"
    # What Celery callers bring along; not part of the intent.
    job_id: UUID | None = None
    queue: str | None = None
    headers: Mapping[str, Any] = field(default_factory=dict)


def enqueue(
    task: Any,
    payload: Mapping[str, Any],
    *,
    key: str | None = None,
    tenant: str = "",
    priority: int | None = None,
    run_at: datetime | None = None,
    start_by: datetime | None = None,
    ordering_key: str | None = None,
    wait: float = 0.0,
    on_conflict: OnConflict = "return",
) -> Enqueued:
    """Accept one job of ``task`` (a LedgerTask or its name) in the caller's transaction.

    ``wait``: seconds to wait for room, not inside a transaction; beyond a few waiting threads of
    one process (``TASKS_WAITING_REQUESTS``) the answer comes at once. Raises Rejected,
    KeyConflict, InvalidKey, InvalidPayload or UnknownTask; then nothing was written.
    """
    return accept(
        task,
        Item(
            payload,
            key=key,
            tenant=tenant,
            priority=priority,
            run_at=run_at,
            start_by=start_by,
            ordering_key=ordering_key,
            on_conflict=on_conflict,
        ),
        wait_s=wait,
    )


def accept(task: Any, item: Item, *, wait_s: float = 0.0) -> Enqueued:
    """``enqueue`` for callers that bring an Item."""
    if wait_s > 0 and connection.in_atomic_block:
        raise ValueError("wait > 0 inside a transaction would hold its locks; enqueue after it")
    task = resolve(task)
    try:
        if wait_s > 0:
            return accept_within(wait_s, task, item)
        return accept_now(task, item)
    except Rejected as rejected:
        metrics.rejected(queue_of(task, item), item.tenant, rejected.reason)
        raise


def accept_within(wait_s: float, task: Any, item: Item) -> Enqueued:
    """Try again until there is room; at the end the last refusal rises."""
    item = replace(item, job_id=item.job_id or uuid7())  # one caller, however often it asks
    try:
        return accept_now(task, item)
    except QueueClosed:
        raise
    except Rejected:
        with seat() as seated:
            if not seated:
                raise
            return accept_by(time.monotonic() + wait_s, task, item)


def accept_by(ends_at: float, task: Any, item: Item) -> Enqueued:
    for pause_s in pauses():
        time.sleep(max(0.0, min(pause_s, ends_at - time.monotonic())))
        try:
            return accept_now(task, item)
        except QueueClosed:
            raise
        except Rejected:
            if time.monotonic() >= ends_at:
                raise
    raise AssertionError("pauses have no end")


def accept_now(task: Any, item: Item) -> Enqueued:
    window_s = getattr(task, "dedupe_window", None)
    if window_s and item.key is None and not task.key:
        return accept_in_window(task, item, window_s)
    return insert_or_find(task, item, prepare(task, item))


def enqueue_many(task: Any, items: Iterable[Item | Mapping[str, Any]]) -> list[Enqueued | Refused]:
    """Accept many jobs of one task, a thousand per statement, all in one transaction.

    One answer per item, in order: an item that is refused does not stop the others.
    """
    task = resolve(task)
    answers: list[Enqueued | Refused] = []
    is_ours = not connection.in_atomic_block
    with transaction.atomic():
        for chunk in batched(items, CHUNK):
            answers += accept_chunk(
                task, [as_item(item) for item in chunk], own_transaction=is_ours
            )
    return answers


# --- preparing ---------------------------------------------------------------------------


NOT_FOUND = "is its app in INSTALLED_APPS, and its module called tasks.py?"


def resolve(task: Any) -> Any:
    """The task object for a task or its name."""
    if isinstance(task, Proxy):  # of @shared_task: it would look for the task at each attribute
        task = task._get_current_object()
    elif isinstance(task, str):
        found = task_of(task)
        if found is None:
            meant = did_you_mean(task, ledger_tasks())
            raise UnknownTask(task, meant or NOT_FOUND)
        task = found
    if not getattr(task, "is_ledger_task", False):
        raise UnknownTask(getattr(task, "name", repr(task)), "give it base=LedgerTask")
    return task


def prepare(task: Any, item: Item, key: str | None = None) -> NewJob:
    """Check an item and bring it into the form in which it is stored."""
    payload = signature_of(task).dump(item.payload)
    priority = (task.priority or 0) if item.priority is None else item.priority
    start_by = item.start_by or expiry_of(task)
    check_options(item, priority, start_by)
    job_id = item.job_id or uuid7()
    return NewJob(
        id=job_id,
        task=task.name,
        queue=queue_of(task, item),
        tenant=item.tenant,
        key=key or key_of(task, item, payload, job_id),
        fingerprint=fingerprint(task.name, payload),
        payload=encode(payload),
        headers=encode_headers(item.headers),
        priority=priority,
        run_at=item.run_at,
        start_by=start_by,
        ordering_key=item.ordering_key,
        lane=task.name if task.own_rate_limit else "",
    )


def queue_of(task: Any, item: Item | None = None) -> str:
    given = item.queue if item else None
    return str(given or task.queue or task.app.conf.task_default_queue)


def needs_key(task: Any) -> bool:
    """Whether nothing but a key of the caller's tells a repeat from a new intent."""
    return not (task.key or task.dedupe_window)


def expiry_of(task: Any) -> datetime | None:
    """``expires`` (seconds) of the task."""
    return datetime.now(UTC) + timedelta(seconds=task.expires) if task.expires else None


def key_of(task: Any, item: Item, payload: Mapping[str, Any], job_id: UUID) -> str:
    """The caller's name for the intent, else the task's, else a fresh one: each call is a job."""
    if item.key is not None:
        return check_key(item.key)
    if task.key:
        return key_from_template(task.key, payload, task.name)
    return str(job_id)


def check_options(item: Item, priority: object, start_by: datetime | None) -> None:
    if type(priority) is not int or priority not in PRIORITY_RANGE:
        raise InvalidPayload("must be a whole number from -100 to 100", path="priority")
    if (
        not isinstance(item.tenant, str)
        or len(item.tenant) > NAME_MAX
        or not item.tenant.isprintable()
    ):
        raise InvalidPayload(f"must be at most {NAME_MAX} printable characters", path="tenant")
    if item.ordering_key is not None:
        check_key(item.ordering_key)
    check_moment("run_at", item.run_at)
    check_moment("start_by", start_by)


def check_moment(name: str, moment: datetime | None) -> None:
    if moment is None:
        return
    if getattr(moment, "tzinfo", None) is None:
        raise InvalidPayload("must be a datetime with a time zone", path=name)
    if not 1970 <= moment.year < 9999:  # in UTC, the edges of the calendar overflow
        raise InvalidPayload("must lie between the years 1970 and 9998", path=name)


def encode_headers(headers: Mapping[str, Any]) -> str | None:
    if not headers:
        return None
    check_json(dict(headers), path="headers")
    custom = {name: value for name, value in headers.items() if name != "celery"}
    # Links and chains hold the payloads of other jobs.
    check_size(custom, HEADERS_MAX_BYTES, "headers")
    return check_size(dict(headers), MAX_PAYLOAD_BYTES, "headers.celery")


def check_size(value: Mapping[str, Any], most: int, path: str) -> str:
    text = dumps(value)
    if len(text.encode()) > most:
        raise InvalidPayload(f"larger than {most} bytes", path=path, malformed=True)
    return text


def uuid7() -> UUID:
    """A time-ordered id (RFC 9562, version 7): new rows go to the end of the index."""
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds & (2**48 - 1)) << 80 | int.from_bytes(os.urandom(10))
    value = value & ~(0xF << 76) | 0x7 << 76
    return UUID(int=value & ~(0x3 << 62) | 0x2 << 62)


# --- one job -----------------------------------------------------------------------------


def insert_or_find(task: Any, item: Item, job: NewJob) -> Enqueued:
    """Insert; on a taken key read back who has it. Nobody there: no room, or the other rolled
    back, then again."""
    for _ in range(READ_BACK_TRIES):
        began = time.monotonic()
        insertion = insert(job)
        if insertion.happened:
            took_s = time.monotonic() - began
            wake.after_insert(job.id, relay_sleeps=insertion.relay_sleeps, took_s=took_s)
            if insertion.sample_is_old:
                admission.refresh(job.queue)
            return created(job)
        owner = acceptance.owner_of(job)
        if owner is None:
            with bounded_lock_wait():
                happened = admission.insert_otherwise(job)
            if happened:
                wake.after_commit(job.id)
                return created(job)
            continue
        if task.unique == "unfinished" and owner.state in TERMINAL:
            acceptance.free_key(owner.id)  # or a rival has: either way the next insert decides
            continue
        return repeat(job, item, owner)
    if item.job_id is not None and acceptance.owners_of([job]):
        raise InvalidPayload("is taken; let the id be made", path="task_id")
    raise Rejected(Refusal.CONTENDED, queue=job.queue)


def insert(job: NewJob) -> Insertion:
    """One round trip; inside a transaction also those of a savepoint.

    A row that was inserted has put the lock timeout back, else the savepoint does.
    """
    with contention_refused():
        if not connection.in_atomic_block:
            return admission.insert(job)
        with transaction.atomic():
            insertion = admission.insert(job)
            transaction.set_rollback(not insertion.happened)
            return insertion


def created(job: NewJob) -> Enqueued:
    metrics.accepted(job.queue, job.task)
    return Enqueued(job.id, True, State.QUEUED, job.key, key_expires_at(job.queue, None))


def repeat(job: NewJob, item: Item, owner: Owner) -> Enqueued:
    """The existing job answers, unless the key names another request."""
    if owner.fingerprint != job.fingerprint and not replaces(job, item, owner):
        raise KeyConflict(job.key, conflicting_fields(job, owner))
    metrics.repeated(owner.queue, job.task)
    return Enqueued(
        owner.id, False, owner.state, job.key, key_expires_at(owner.queue, owner.finished_at)
    )


def replaces(job: NewJob, item: Item, owner: Owner) -> bool:
    return (
        item.on_conflict == "replace"
        and owner.task == job.task
        and acceptance.replace_payload(owner.id, job.payload, job.fingerprint)
    )


def conflicting_fields(job: NewJob, owner: Owner) -> Sequence[str]:
    if owner.task != job.task:
        return ["task"]
    return differing_fields(owner.payload, job.payload_data) or ["payload"]


def key_expires_at(queue: str, finished_at: datetime | None) -> datetime:
    """Until then at least, the key answers with this job."""
    return (finished_at or datetime.now(UTC)) + topology().queue(queue).retention


@contextmanager
def bounded_lock_wait() -> Iterator[None]:
    """A racer waits for another's open transaction no longer than the lock timeout.

    The INSERT sets that timeout for its own transaction. Inside the caller's, a savepoint
    keeps an error from spoiling it, and the caller's own setting is put back.
    """
    with contention_refused():
        if connection.in_atomic_block:
            with transaction.atomic():
                before = sql.lock_timeout()
                yield
                sql.set_lock_timeout(before)
        else:
            yield


@contextmanager
def contention_refused() -> Iterator[None]:
    try:
        yield
    except OperationalError as exc:
        if isinstance(exc.__cause__, LockNotAvailable | DeadlockDetected):
            raise Rejected(Refusal.CONTENDED) from exc
        raise


# --- a window of content -----------------------------------------------------------------


def accept_in_window(task: Any, item: Item, window_s: float) -> Enqueued:
    """One job per content and window, so that a double click is one job.

    Two clicks on either side of a bucket's edge have different keys: a lock on the content
    makes the second see the first.
    """
    payload = signature_of(task).dump(item.payload)
    with transaction.atomic():
        with bounded_lock_wait():
            now_s = acceptance.lock_content(fingerprint(task.name, payload) + item.tenant)
        current, previous = window_keys(task.name, item.tenant, payload, window_s, now_s)
        job = prepare(task, item, current)
        owner = acceptance.owner_since(job.tenant, [current, previous], now_s - window_s)
        answer = repeat(job, item, owner) if owner else insert_or_find(task, item, job)
    return Enqueued(**{**vars(answer), "derived": True})


# --- many jobs ---------------------------------------------------------------------------


def as_item(item: Item | Mapping[str, Any]) -> Item:
    return item if isinstance(item, Item) else Item(item)


def accept_chunk(
    task: Any, items: Sequence[Item], *, own_transaction: bool = False
) -> list[Enqueued | Refused]:
    """One insert for all that is valid; what was not inserted is looked at one by one.

    ``own_transaction``: no caller's, so others may wait for its end.
    """
    jobs = [attempt(prepare, task, item) for item in items]
    valid = [job for job in jobs if isinstance(job, NewJob)]
    try:
        with bounded_lock_wait():
            inserted = (
                admission.insert_many(valid, own_transaction=own_transaction) if valid else set()
            )
    except Rejected:
        return accept_each(task, items, jobs)
    if inserted:
        wake.after_commit(*inserted)
    owned = acceptance.owners_of([job for job in valid if job.id not in inserted])
    refusals: Refusals = {}
    return [
        job if isinstance(job, Refused)
        else created(job) if job.id in inserted
        else attempt(insert_or_find, task, item, job) if job.id in owned
        else insert_unless_refused(task, item, job, refusals)
        for item, job in zip(items, jobs, strict=True)
    ]  # fmt: skip


# Each costs a whole lock timeout, and the transaction stays open meanwhile.
CONTENDED_MAX = 3


def accept_each(
    task: Any, items: Sequence[Item], jobs: Sequence[NewJob | Refused]
) -> list[Enqueued | Refused]:
    """One by one, in key order, after an open transaction kept one of the keys from all.

    That one is refused, the others go on. After a few of them the rest is refused unasked.
    """
    answers: dict[int, Enqueued | Refused] = {}
    refusals: Refusals = {}
    contended = 0
    for place in sorted(range(len(jobs)), key=lambda at: key_order(jobs[at])):
        job = jobs[place]
        if isinstance(job, Refused):
            answers[place] = job
        elif contended == CONTENDED_MAX:
            answers[place] = Refused(Rejected(Refusal.CONTENDED, queue=job.queue))
        else:
            answers[place] = insert_unless_refused(task, items[place], job, refusals)
            contended += is_contended(answers[place])
    return [answers[place] for place in range(len(jobs))]


def key_order(job: NewJob | Refused) -> tuple[str, str]:
    return ("", "") if isinstance(job, Refused) else (job.tenant, job.key)


def is_contended(answer: Enqueued | Refused) -> bool:
    return (
        isinstance(answer, Refused)
        and isinstance(answer.error, Rejected)
        and answer.error.reason == Refusal.CONTENDED
    )


# The answer to jobs of the same queue, tenant and priority.
Refusals = dict[tuple[str, str, int], Refused]


def insert_unless_refused(
    task: Any, item: Item, job: NewJob, refusals: Refusals
) -> Enqueued | Refused:
    """Where one was refused, the others like it are, unasked.

    A thousand questions would hold the transaction open.
    """
    alike = (job.queue, job.tenant, job.priority)
    answer: Enqueued | Refused | None = None
    if job.run_at is None:  # there is always room for later
        answer = refusals.get(alike)
    if answer is None:
        answer = attempt(insert_or_find, task, item, job)
    if isinstance(answer, Refused) and isinstance(answer.error, Rejected):
        metrics.rejected(job.queue, job.tenant, answer.error.reason)
        if job.run_at is None and answer.error.reason != Refusal.CONTENDED:
            refusals[alike] = answer
    return answer


def attempt[**P, R](function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | Refused:
    try:
        return function(*args, **kwargs)
    except TasksError as error:
        return Refused(error)
