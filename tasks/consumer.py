"""Celery's consumer, taught to survive bad messages and to keep what it cannot run.

Celery deletes a message that names an unknown task, refuses to be decoded or has a bad header,
and one whose body has the wrong shape ends the worker, returns to the queue and ends the next
one. Here every such message ends in a table before it is acked.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import structlog
from celery import signals
from celery.worker import state
from celery.worker.consumer import Consumer as CeleryConsumer
from kombu.exceptions import ContentDisallowed

from tasks import message_format, parking
from tasks.batch import is_batch

log = structlog.get_logger(__name__)

# What Celery's own reading of a message raises when a part of it is missing or has another shape.
MALFORMED = (
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
)


class Consumer(CeleryConsumer):
    """Set as ``worker_consumer``."""

    connection_errors: tuple[type[Exception], ...]
    channel_errors: tuple[type[Exception], ...]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Before Celery's: that one already starts the steps.
        self.desk = parking.Desk()
        super().__init__(*args, **kwargs)

    def create_task_handler(self, *args: Any, **kwargs: Any) -> Callable[[Any], None]:
        receive = super().create_task_handler(*args, **kwargs)

        def on_task_received(message: Any) -> None:
            try:
                if self.is_left_to_another_release(message):
                    return
                check_shape(message)
                if self.is_job_of_another_base(message):
                    self.on_unknown_task(None, message, KeyError("no LedgerTask here"))
                else:
                    receive(message)
            except MALFORMED as exc:
                if message.acknowledged or is_taken(message):
                    raise
                self.on_invalid_task(None, message, exc)

        return on_task_received

    def is_left_to_another_release(self, message: Any) -> bool:
        """Before anything else is read: a newer format may give all of it another meaning."""
        jobs = parking.jobs_of(message)
        problem = message_format.problem(message.headers) if jobs else ""
        if not problem:
            return False
        self.desk.hand_over(parking.unread(jobs, message, problem), self.acked_later(message))
        return True

    def is_job_of_another_base(self, message: Any) -> bool:
        """A job whose task is a plain one here. Its arguments are in the ledger: called without
        them, it would fail, or worse, run on its defaults."""
        jobs = parking.jobs_of(message)
        task = self.app.tasks.get(jobs[0].task) if jobs else None
        return task is not None and not getattr(task, "is_ledger_task", False)

    def on_unknown_message(self, body: Any, message: Any) -> None:
        self.park(message, "not a task message")
        signals.task_rejected.send(sender=self, message=message, exc=None)

    def on_unknown_task(self, body: Any, message: Any, exc: Exception) -> None:
        jobs = parking.jobs_of(message)
        if jobs:
            self.desk.hand_over(parking.held(jobs, message), self.acked_later(message))
            return
        self.park(message, "unknown task")
        signals.task_unknown.send(
            sender=self,
            message=message,
            exc=exc,
            name=parking.task_name(message),
            id=message.headers.get("id"),
        )

    def on_invalid_task(self, body: Any, message: Any, exc: Exception) -> None:
        kind = "refused content" if isinstance(exc, ContentDisallowed) else "invalid task message"
        self.park(message, f"{kind}: {type(exc).__name__}: {exc}")
        signals.task_rejected.send(sender=self, message=message, exc=exc)

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        self.park(message, f"cannot be decoded: {type(exc).__name__}: {exc}")

    def park(self, message: Any, reason: str) -> None:
        """The message is acked when its row is committed."""
        self.desk.hand_over(parking.parked(message, reason), self.acked_later(message))

    def acked_later(self, message: Any) -> Callable[[], None]:
        """Acks in the loop, the only place where a channel may be used."""

        def ack() -> None:
            try:
                message.ack()
            except (*self.connection_errors, *self.channel_errors) as exc:
                # The connection is another one by now: the message comes again and is kept twice.
                log.warning("ack_failed", error=repr(exc))

        return lambda: self.call_soon(ack)


def check_shape(message: Any) -> None:
    """Raise what is wrong with a value that Celery would trust until it is too late: when the
    request exists already, or in the timer of the pool."""
    headers = message.headers
    try:
        payload = message.payload
    except Exception:  # Celery meets it again, and says what it is
        payload = None
    parts = [part for part in (headers, payload) if isinstance(part, dict)]
    if not any("task" in part for part in parts):
        return
    if isinstance(payload, list | tuple) and len(payload) == 3:
        parts.append(embedded(*payload))
    for part in parts:
        for name, is_right in SHAPES.items():
            if name in part and not is_right(part[name]):
                raise TypeError(f"{name} is {part[name]!r:.100}")
    check_depth([headers, message.properties, payload])


def check_depth(value: Any) -> None:
    """Raise RecursionError for what the pool could not pickle, inside its own few levels."""
    for _ in range(MARGIN_OF_DEPTH):
        value = [value]
    pickle.dumps(value)


def embedded(args: Any, kwargs: Any, embed: Any) -> dict[str, Any]:
    """What the body of a task says about its request."""
    if not isinstance(args, list | tuple) or not isinstance(kwargs, dict):
        raise TypeError("the arguments are not a list and an object")
    if not is_object_or_null(embed):
        raise TypeError("the third part of the body is not an object")
    return embed or {}


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_text_or_null(value: Any) -> bool:
    return value is None or isinstance(value, str)


def is_object_or_null(value: Any) -> bool:
    return value is None or isinstance(value, dict)


def is_integer(value: Any) -> bool:
    return type(value) is int


def are_texts(value: Any) -> bool:
    return value is None or (isinstance(value, list | tuple) and all(map(is_text, value)))


def are_signatures(value: Any) -> bool:
    return value is None or (
        isinstance(value, list | tuple) and all(isinstance(item, dict) for item in value)
    )


def are_time_limits(value: Any) -> bool:
    return value is None or (
        isinstance(value, list | tuple) and len(value) == 2 and all(map(is_time_limit, value))
    )


def is_time_limit(value: Any) -> bool:
    # An upper bound too: the timers of the pool add it to a float.
    return value is None or (type(value) in (int, float) and 0 <= value < TIME_LIMIT_MAX_S)


TIME_LIMIT_MAX_S = 2**31
MARGIN_OF_DEPTH = 50
SHAPES: dict[str, Callable[[Any], bool]] = {
    "id": is_text,
    "task": is_text,
    "dispatch_no": parking.is_dispatch_no,
    "batch": is_batch,
    "timelimit": are_time_limits,
    "eta": is_text_or_null,
    "expires": is_text_or_null,
    "retries": is_integer,
    "root_id": is_text_or_null,
    "parent_id": is_text_or_null,
    "group": is_text_or_null,
    "shadow": is_text_or_null,
    "stamped_headers": are_texts,
    "stamps": is_object_or_null,
    "headers": is_object_or_null,
    "callbacks": are_signatures,
    "errbacks": are_signatures,
    "chain": are_signatures,
    "chord": is_object_or_null,
}


def is_taken(message: Any) -> bool:
    """Whether a run was made of it: what is raised after that is not the message's fault."""
    return any(request.message is message for request in tuple(state.requests.values()))
