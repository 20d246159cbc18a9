"""Celery's consumer, taught to survive bad messages and to keep what it cannot run.

Celery deletes a message that names an unknown task, refuses to be decoded or has a bad header,
and one whose body has the wrong shape ends the worker, returns to the queue and ends the next
one. Here every such message ends in a table before it is acked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog
from celery import signals
from celery.worker import state
from celery.worker.consumer import Consumer as CeleryConsumer
from kombu.exceptions import ContentDisallowed

from tasks import parking

log = structlog.get_logger(__name__)

# What Celery's own reading of a message raises when a part of it is missing or has another shape.
MALFORMED = (KeyError, ValueError, TypeError, AttributeError, IndexError)


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
                receive(message)
            except MALFORMED as exc:
                if message.acknowledged or is_taken(message):
                    raise
                self.on_invalid_task(None, message, exc)

        return on_task_received

    def on_unknown_message(self, body: Any, message: Any) -> None:
        self.park(message, "not a task message")
        signals.task_rejected.send(sender=self, message=message, exc=None)

    def on_unknown_task(self, body: Any, message: Any, exc: Exception) -> None:
        job = parking.job_of(message)
        if job is not None:
            self.desk.hand_over(parking.held(job), self.acked_later(message))
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


def is_taken(message: Any) -> bool:
    """Whether a run was made of it: what is raised after that is not the message's fault."""
    return any(request.message is message for request in tuple(state.requests.values()))
