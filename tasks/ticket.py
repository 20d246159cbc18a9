"""One work that a pool has accepted: its ticket, the token it sees, how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tasks.errors import Discarded, Interrupted

type Work[T] = Callable[[Token], Coroutine[Any, Any, T]]


class TicketState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # the work raised
    CANCELLED = "cancelled"  # it was told to stop, or its deadline passed in the line
    REJECTED = "rejected"  # it lost its place to more important work
    DISCARDED = "discarded"  # the pool stopped before it began, or while it would not stop

    @property
    def is_terminal(self) -> bool:
        return self not in (TicketState.QUEUED, TicketState.RUNNING)


class Token:
    """What work sees of the wish that it stop. When it looks is up to the work."""

    def __init__(self) -> None:
        self.reason: Interrupted | None = None
        self._told = asyncio.Event()

    @property
    def cancelled(self) -> bool:
        return self.reason is not None

    def check(self) -> None:
        """Call it where stopping is safe. Raises Cancelled or Draining; let it rise."""
        if self.reason is not None:
            raise self.reason.with_traceback(None)

    async def wait(self) -> None:
        """Until it is told to stop; for work that waits for something else at the same time."""
        await self._told.wait()

    def tell(self, reason: Interrupted) -> None:
        """The first reason stays."""
        if self.reason is None:
            self.reason = reason
            self._told.set()


@dataclass(frozen=True)
class Outcome[T]:
    """A terminal state, with the value of a success or the error of anything else."""

    state: TicketState
    error: BaseException | None = None
    value: T | None = None


class Ticket[T]:
    """``state`` changes from queued to running to a terminal one, or ends without running."""

    def __init__(
        self,
        name: str,
        work: Work[T],
        *,
        now: float,
        cancel: Callable[[Ticket[Any], str], bool],
        priority: int = 0,
        start_by: float | None = None,
    ) -> None:
        self.name = name
        self.priority = priority
        self.start_by = start_by  # loop.time()
        self.since = now  # of this state
        self.outcome: Outcome[T] | None = None
        self.token = Token()
        self._work = work
        self._cancel = cancel
        # The work sees the context variables of its submitter, not those of the worker.
        self._context = copy_context()
        self._task: asyncio.Task[T] | None = None
        self._is_interrupted = False
        self._has_ended = asyncio.Event()

    # --- for its submitter ------------------------------------------------------------

    @property
    def state(self) -> TicketState:
        if self.outcome is not None:
            return self.outcome.state
        return TicketState.QUEUED if self._task is None else TicketState.RUNNING

    async def result(self) -> T:
        """What the work returned. Raises what it raised, or why it did not come to its end.

        Who stops waiting here changes nothing about the work.
        """
        await self._has_ended.wait()
        assert self.outcome is not None
        if self.outcome.error is not None:
            raise self.outcome.error
        return self.outcome.value  # type: ignore[return-value]  # a success has one

    def cancel(self, reason: str) -> bool:
        """Queued, it ends now and never runs. Running, it is told. False: it had ended."""
        return self._cancel(self, reason)

    # --- for its pool -----------------------------------------------------------------

    def begin(self, now: float) -> asyncio.Task[T]:
        """In a task of its own, which can be interrupted without its worker."""
        assert self.state == TicketState.QUEUED
        self.since = now
        self._task = asyncio.create_task(self._run(), name=self.name, context=self._context)
        return self._task

    async def _run(self) -> T:
        return await self._work(self.token)  # called in here, so that its errors are its own

    def interrupt(self) -> None:
        """CancelledError where it waits. Once: a second one would break into its cleaning up."""
        if self._task is not None and not self._is_interrupted:
            self._is_interrupted = True
            self._task.cancel()

    def end(self, outcome: Outcome[T]) -> None:
        assert self.outcome is None
        self.outcome = outcome
        self._has_ended.set()


def outcome_of[T](task: asyncio.Task[T], token: Token) -> Outcome[T]:
    """How the task of a work ended, or that nobody will wait for its end any more."""
    if not task.done():
        return Outcome(TicketState.DISCARDED, Discarded("it could not be interrupted"))
    if task.cancelled():
        if token.reason is None:
            return Outcome(TicketState.FAILED, RuntimeError("the work cancelled itself"))
        return Outcome(TicketState.CANCELLED, token.reason)
    error = task.exception()
    if error is None:
        return Outcome(TicketState.SUCCEEDED, value=task.result())
    if token.cancelled and isinstance(error, Interrupted):
        return Outcome(TicketState.CANCELLED, token.reason)
    return Outcome(TicketState.FAILED, error)
