"""Keeps what a worker receives and cannot run: foreign messages parked, our own jobs held.

The consumer's loop must never wait for the database, so one thread writes. A message is acked
only after its row is committed: until then the broker still has it, and with the database away
it simply stays unacked.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeGuard
from uuid import UUID

import structlog

from tasks import ledger
from tasks.batch import is_batch
from tasks.batch import jobs_of as named_by
from tasks.connections import LOST, bounded, is_lost
from tasks.ledger import Dispatched
from tasks.sql import storable
from tasks.wiring import release

log = structlog.get_logger(__name__)

BODY_MAX = 1024 * 1024  # bytes; four times the largest payload
HEADERS_MAX = 64 * 1024  # characters
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
DISPATCH_NO_MAX = 2**31 - 1  # what its column holds

Write = Callable[[], object]


@dataclass(frozen=True)
class Keeping:
    """What keeps a message, and the little that is kept when the database refuses that.

    Nothing of the message is read later, so it may be acked meanwhile.
    """

    write: Write
    reason: str
    body: bytes

    def write_bare(self, refusal: Exception) -> None:
        reason = f"{self.reason[:200]}; kept without its headers: {refusal!r}"
        ledger.park(queue="", reason=reason, task="", headers="", body=self.body)
        log.warning("message_parked", reason=storable(reason))


def parked(message: Any, reason: str) -> Keeping:
    """A message of somebody else, for a person to look at."""
    body, cut = bounded_body(message.body)
    headers, task, reason = as_json(message.headers), task_name(message), storable(reason + cut)
    queue = storable(str((message.delivery_info or {}).get("routing_key") or ""))

    def write() -> None:
        ledger.park(queue=queue, reason=reason, task=task, headers=headers, body=body)
        log.warning("message_parked", task=task, queue=queue, reason=reason)

    return Keeping(write, reason, body)


def held(jobs: Sequence[Dispatched], message: Any) -> Keeping:
    """Jobs of ours, whose task this worker does not know, for one that does."""

    def write() -> None:
        for job in jobs:
            is_held = ledger.hold_unknown(job.id, job.dispatch_no)
            log.warning("job_unknown_here", job_id=str(job.id), task=job.task, held=is_held)

    return Keeping(write, f"job {jobs[0].id} could not be held", bounded_body(message.body)[0])


def jobs_of(message: Any) -> list[Dispatched]:
    """The jobs this message stands for, if it is one of ours."""
    headers = message.headers or {}
    if headers.get("batch") and is_batch(headers["batch"]):
        return [Dispatched(job_id, task_name(message), no) for job_id, no in named_by(headers)]
    job = job_of(message)
    return [job] if job else []


def unread(jobs: Sequence[Dispatched], message: Any, problem: str) -> Keeping:
    """Jobs of ours in a message of a newer format, for a worker that reads it."""

    def write() -> None:
        for job in jobs:
            is_held = ledger.hold_unread(
                job.id, job.dispatch_no, release=release(), problem=problem
            )
            log.warning("message_too_new", job_id=str(job.id), problem=problem, held=is_held)

    return Keeping(write, f"job {jobs[0].id} could not be held", bounded_body(message.body)[0])


def job_of(message: Any) -> Dispatched | None:
    headers = message.headers or {}
    number = headers.get("dispatch_no")
    try:
        job_id = UUID(str(headers["id"]))
    except (KeyError, ValueError):
        return None
    if not is_dispatch_no(number):
        return None
    return Dispatched(job_id, task_name(message), number)


def is_dispatch_no(value: Any) -> TypeGuard[int]:
    """Whether we can have given it: any other is a stranger's."""
    return type(value) is int and 0 < value <= DISPATCH_NO_MAX


def task_name(message: Any) -> str:
    headers = message.headers
    return storable(str(headers.get("task") or "")) if isinstance(headers, dict) else ""


def as_json(headers: Any) -> str:
    try:
        return json.dumps(headers, default=repr, ensure_ascii=False)[:HEADERS_MAX]
    except RecursionError:
        return "(nested too deeply)"


def bounded_body(body: Any) -> tuple[bytes, str]:
    """The body as bytes, and a note when it had to be cut."""
    if isinstance(body, str):
        body = body.encode("utf-8", "backslashreplace")
    elif not isinstance(body, bytes | bytearray | memoryview):
        body = repr(body).encode("utf-8", "backslashreplace")
    body = bytes(body)
    if len(body) <= BODY_MAX:
        return body, ""
    return body[:BODY_MAX], f" (body cut from {len(body)} bytes)"


class Desk:
    """One thread that writes, in order, and calls back when each row is committed.

    Its queue holds at most the unacked messages of the worker, which the prefetch count bounds.
    Without a database everything waits; what the database refuses waits alone.
    """

    def __init__(self) -> None:
        self._waiting: SimpleQueue[tuple[Keeping, Callable[[], None]]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def hand_over(self, keeping: Keeping, then: Callable[[], None]) -> None:
        self._waiting.put((keeping, then))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="parking", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        refused: list[tuple[Keeping, Callable[[], None]]] = []
        while True:
            try:
                keeping, then = self._waiting.get(timeout=LONGEST_PAUSE_S if refused else None)
            except Empty:
                while refused:
                    self._waiting.put(refused.pop(0))
                continue
            # Whatever it raises, the thread must live: nobody else parks.
            try:
                if is_kept(keeping):
                    then()
                else:
                    refused.append((keeping, then))
            except Exception:
                log.exception("parking_failed", reason=keeping.reason)


def is_kept(keeping: Keeping) -> bool:
    """Whether a row is committed, if only a bare one."""
    try:
        write_once_connected(keeping.write)
        return True
    except Exception as exc:
        refusal = exc
    log.error("parking_refused", reason=keeping.reason, error=repr(refusal))
    try:
        write_once_connected(partial(keeping.write_bare, refusal))
        return True
    except Exception as exc:
        log.error("message_not_parked", reason=keeping.reason, error=repr(exc))
        return False


def write_once_connected(write: Write) -> None:
    """Waits as long as the database is away; what it refuses is raised."""
    pause_s = FIRST_PAUSE_S
    while True:
        with bounded():
            try:
                write()
                return
            except LOST as error:
                if not is_lost():
                    raise
                if pause_s == FIRST_PAUSE_S:
                    log.error("parking_waits_for_database", error=str(error))
        # Nobody sets it: a pause that a test can see through.
        threading.Event().wait(pause_s)
        pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
