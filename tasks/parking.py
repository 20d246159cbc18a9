"""Keeps what a worker receives and cannot run: foreign messages parked, our own jobs held.

The consumer's loop must never wait for the database, so one thread writes. A message is acked
only after its row is committed: until then the broker still has it, and with the database away
it simply stays unacked.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any
from uuid import UUID

import structlog
from django.db import DatabaseError, InterfaceError

from tasks import ledger
from tasks.connections import bounded
from tasks.ledger import Dispatched

log = structlog.get_logger(__name__)

BODY_MAX = 1024 * 1024  # bytes; four times the largest payload
HEADERS_MAX = 64 * 1024  # characters
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0

Write = Callable[[], object]


def parked(message: Any, reason: str) -> Write:
    """What keeps this message; nothing of it is read later, so it may be acked meanwhile."""
    body, cut = bounded_body(message.body)
    headers, task = as_json(message.headers), task_name(message)
    queue = str((message.delivery_info or {}).get("routing_key") or "")

    def write() -> None:
        ledger.park(queue=queue, reason=reason + cut, task=task, headers=headers, body=body)
        log.warning("message_parked", task=task, queue=queue, reason=reason + cut)

    return write


def held(job: Dispatched) -> Write:
    """What keeps a job of ours, whose task this worker does not know, for one that does."""

    def write() -> None:
        is_held = ledger.hold_unknown(job.id, job.dispatch_no)
        log.warning("job_unknown_here", job_id=str(job.id), task=job.task, held=is_held)

    return write


def job_of(message: Any) -> Dispatched | None:
    """The job this message stands for, if it is one of ours."""
    headers = message.headers or {}
    number = headers.get("dispatch_no")
    try:
        job_id = UUID(str(headers["id"]))
    except (KeyError, ValueError):
        return None
    if not isinstance(number, int):
        return None
    return Dispatched(job_id, str(headers.get("task", "")), number)


def task_name(message: Any) -> str:
    headers = message.headers
    return str(headers.get("task") or "") if isinstance(headers, dict) else ""


def as_json(headers: Any) -> str:
    return json.dumps(headers, default=repr, ensure_ascii=False)[:HEADERS_MAX]


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
    """

    def __init__(self) -> None:
        self._waiting: SimpleQueue[tuple[Write, Callable[[], None]]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def hand_over(self, write: Write, then: Callable[[], None]) -> None:
        self._waiting.put((write, then))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="parking", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            write, then = self._waiting.get()
            self._write_until_done(write)
            then()

    def _write_until_done(self, write: Write) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                with bounded():
                    write()
                return
            except (DatabaseError, InterfaceError) as error:
                if pause_s == FIRST_PAUSE_S:
                    log.error("parking_waits_for_database", error=str(error))
                # Nobody sets it: a pause that a test can see through.
                threading.Event().wait(pause_s)
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
