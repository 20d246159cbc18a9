"""A bounded pool of asyncio workers in one process: fixed slots, a bounded line before them.

    submit ──> waiting line ──> one of the workers ──> work(token) ──> the ticket ends

Every submission is answered, with a ticket or an error, and every ticket ends in exactly one
state. Taking a ticket out of the line is what decides about it: a worker takes it to run it,
anything else takes it to end it, and nobody can take it twice.

Nothing here knows of Django, Celery or jobs. A pool belongs to one event loop and is used there;
other threads come in through ``submit_threadsafe``.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from concurrent.futures import Future
from dataclasses import asdict
from types import TracebackType
from typing import Any, Literal, Self

import structlog

from tasks.closing_queue import QueueShutDown
from tasks.errors import (
    Cancelled,
    DeadlinePassed,
    Discarded,
    Draining,
    PoolClosed,
    PoolFull,
)
from tasks.pool_report import Snapshot, StopReport
from tasks.ticket import Outcome, Ticket, TicketState, Token, Work, outcome_of
from tasks.waiting_line import WaitingLine

__all__ = ["Snapshot", "StopReport", "Ticket", "TicketState", "Token", "Work", "WorkerPool"]

log = structlog.get_logger(__name__)

# As long as Docker and Kubernetes let a process live after TERM, less some time to exit.
DRAIN_S = 20.0
# Seconds that running work has to end after it was told, and again after it was interrupted:
# enough for an answer that is on its way. A short deadline is divided among them instead.
GRACE_S = 1.0
# Weight of the newest run in the mean run time: the last ten or so decide.
NEWEST_WEIGHT = 0.1


class WorkerPool:
    """Runs at most ``slots`` works at once and keeps at most ``capacity`` more in line.

    ``policy="shed"``: when the line is full, more important work takes the place of the least
    important, youngest one. The default refuses the newcomer.

    As a context manager it drains at the end, and aborts when an exception leaves the block.
    """

    def __init__(
        self,
        slots: int,
        capacity: int,
        name: str,
        *,
        policy: Literal["reject", "shed"] = "reject",
    ) -> None:
        if slots < 1 or capacity < 1:
            raise ValueError(f"pool {name}: slots and capacity must be at least 1")
        self.slots = slots
        self.capacity = capacity
        self.name = name
        self.policy = policy
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed_because: str | None = None
        self._line: WaitingLine[Ticket[Any]] = WaitingLine(capacity)
        self._workers: list[asyncio.Task[None]] = []
        self._running: set[Ticket[Any]] = set()
        self._deadlines: dict[Ticket[Any], asyncio.TimerHandle] = {}
        self._left_behind: set[asyncio.Task[Any]] = set()
        self._mean_run_s: float | None = None
        self._waiting_for_room = 0
        self._answers: Counter[str] = Counter()  # to submissions
        self._ends: Counter[TicketState] = Counter()  # of tickets
        # Names of what a stop ended; no more than the line and the slots hold.
        self._discarded: list[str] = []
        self._interrupted: list[str] = []
        self._unstoppable: list[str] = []

    # --- start ------------------------------------------------------------------------

    def start(self) -> None:
        """Bind it to the running loop. All methods do; ``submit_threadsafe`` needs it done."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            self._workers = [self._start_worker(number) for number in range(self.slots)]
        elif self._loop is not loop:
            raise RuntimeError(f"pool {self.name} belongs to another event loop")

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            await self.drain()
        else:
            await self.abort(f"{type(error).__name__}: {error}")

    # --- submit -----------------------------------------------------------------------

    async def submit[T](
        self,
        name: str,
        work: Work[T],
        *,
        wait: float = 0.0,
        priority: int = 0,
        deadline: float | None = None,
    ) -> Ticket[T]:
        """Accept the work, or raise PoolFull, PoolClosed or DeadlinePassed.

        ``wait``: seconds it may wait for room; 0 answers at once. ``priority``: a larger one
        starts earlier. ``deadline``: seconds from now within which it must have started. In the
        line it is cancelled then; once it runs the deadline has been kept.
        """
        self.start()
        self._answers["submitted"] += 1
        now = self._now()
        start_by = None if deadline is None else now + deadline
        ticket = Ticket(
            name, work, now=now, cancel=self._cancel, priority=priority, start_by=start_by
        )
        try:
            await self._enter(ticket, wait if deadline is None else min(wait, deadline))
        except QueueShutDown:
            self._answers["closed"] += 1
            raise PoolClosed(f"pool {self.name}: {self._closed_because}") from None
        except (asyncio.QueueFull, TimeoutError):
            raise self._refusal(ticket) from None
        except asyncio.CancelledError:
            self._answers["caller gone"] += 1
            log.info("submitter_cancelled", pool=self.name, work=name)
            raise
        self._answers["accepted"] += 1
        self._watch_deadline(ticket)
        return ticket

    def submit_threadsafe[T](
        self,
        name: str,
        work: Work[T],
        *,
        wait: float = 0.0,
        priority: int = 0,
        deadline: float | None = None,
    ) -> Future[Ticket[T]]:
        """``submit`` from another thread. Give its ``result`` a timeout: a loop can stand still.

        The ticket is for the loop's thread: ``loop.call_soon_threadsafe(ticket.cancel, reason)``.
        """
        if self._loop is None:
            raise RuntimeError(f"pool {self.name} has not been started on its event loop")
        call = self.submit(name, work, wait=wait, priority=priority, deadline=deadline)
        try:
            return asyncio.run_coroutine_threadsafe(call, self._loop)
        except RuntimeError as exc:
            call.close()
            raise PoolClosed(f"pool {self.name}: its event loop is closed") from exc

    async def _enter(self, ticket: Ticket[Any], patience_s: float) -> None:
        """Into the line. Raises QueueShutDown, QueueFull or TimeoutError."""
        if self._line.full() and len(self._running) < self.slots:
            await asyncio.sleep(0)  # a worker is about to take the first of the line
        if ticket.start_by is not None and ticket.start_by <= self._now():
            raise TimeoutError
        if self._line.full() and self.policy == "shed":
            self._shed_for(ticket)
        if patience_s <= 0 or not self._line.full():
            self._line.put_nowait(ticket)
        else:
            await self._enter_later(ticket, patience_s)

    async def _enter_later(self, ticket: Ticket[Any], patience_s: float) -> None:
        self._waiting_for_room += 1
        try:
            async with asyncio.timeout(patience_s):
                await self._line.put(ticket)
        finally:
            self._waiting_for_room -= 1

    def _shed_for(self, ticket: Ticket[Any]) -> None:
        least = self._line.last()
        if self._closed_because is None and least.priority < ticket.priority:
            self._line.withdraw(least)
            self._end(least, Outcome(TicketState.REJECTED, self._full()))

    def _refusal(self, ticket: Ticket[Any]) -> PoolFull | DeadlinePassed:
        if ticket.start_by is not None and ticket.start_by <= self._now():
            self._answers["late"] += 1
            return DeadlinePassed(f"{ticket.name}: its deadline has passed")
        self._answers["full"] += 1
        return self._full()

    def _full(self) -> PoolFull:
        """With the seconds in which all that is in line has started, at the measured pace."""
        line_s = self._line.qsize() * (self._mean_run_s or 0.0) / self.slots
        return PoolFull(f"pool {self.name} is full", max(1, math.ceil(line_s)))

    # --- cancel -----------------------------------------------------------------------

    def _cancel(self, ticket: Ticket[Any], reason: str) -> bool:
        if ticket.state == TicketState.RUNNING:
            ticket.token.tell(Cancelled(reason))
            return True
        return self._cancel_queued(ticket, Cancelled(reason))

    def _cancel_queued(self, ticket: Ticket[Any], error: Exception) -> bool:
        if not self._line.withdraw(ticket):
            return False
        self._end(ticket, Outcome(TicketState.CANCELLED, error))
        return True

    def _watch_deadline(self, ticket: Ticket[Any]) -> None:
        if ticket.start_by is not None and self._loop is not None:
            error = DeadlinePassed(f"{ticket.name}: its deadline passed in the line")
            self._deadlines[ticket] = self._loop.call_at(
                ticket.start_by, self._cancel_queued, ticket, error
            )

    def _forget_deadline(self, ticket: Ticket[Any]) -> None:
        timer = self._deadlines.pop(ticket, None)
        if timer is not None:
            timer.cancel()

    # --- work -------------------------------------------------------------------------

    def _start_worker(self, number: int) -> asyncio.Task[None]:
        worker = asyncio.create_task(self._work(), name=f"{self.name}-{number}")
        worker.add_done_callback(self._worker_ended)
        return worker

    async def _work(self) -> None:
        while True:
            try:
                ticket = await self._line.get()
            except QueueShutDown:
                return  # closed and empty: the ordinary end of a worker
            try:
                await self._run(ticket)
            finally:
                self._line.task_done()

    async def _run(self, ticket: Ticket[Any]) -> None:
        task = ticket.begin(self._now())
        self._running.add(ticket)
        try:
            await asyncio.wait({task})
        finally:
            # Also when this worker is cancelled, which leaves the work behind.
            self._running.remove(ticket)
            self._settle(ticket, task)

    def _settle(self, ticket: Ticket[Any], task: asyncio.Task[Any]) -> None:
        self._note_run_time(self._now() - ticket.since)
        outcome = outcome_of(task, ticket.token)
        if not task.done():
            self._leave_behind(ticket, task)
        self._end(ticket, outcome)
        if outcome.state == TicketState.FAILED:
            log.warning("work_failed", pool=self.name, work=ticket.name, exc_info=outcome.error)
            if not isinstance(outcome.error, Exception):
                self._collapse(f"{ticket.name} ended with {outcome.error!r}")

    def _note_run_time(self, run_s: float) -> None:
        mean_s = run_s if self._mean_run_s is None else self._mean_run_s
        self._mean_run_s = mean_s + (run_s - mean_s) * NEWEST_WEIGHT

    def _leave_behind(self, ticket: Ticket[Any], task: asyncio.Task[Any]) -> None:
        ticket.interrupt()
        self._unstoppable.append(ticket.name)
        self._left_behind.add(task)  # the loop itself does not keep a task alive
        task.add_done_callback(self._ended_late)
        log.error("work_left_behind", pool=self.name, work=ticket.name)

    def _ended_late(self, task: asyncio.Task[Any]) -> None:
        self._left_behind.remove(task)
        error = None if task.cancelled() else task.exception()
        log.warning("work_ended_late", pool=self.name, work=task.get_name(), error=repr(error))

    def _end(self, ticket: Ticket[Any], outcome: Outcome[Any]) -> None:
        """The only door to a terminal state, for a ticket that was taken out of the line."""
        self._forget_deadline(ticket)
        ticket.end(outcome)
        self._ends[outcome.state] += 1
        if outcome.state == TicketState.CANCELLED and isinstance(outcome.error, Draining):
            self._interrupted.append(ticket.name)

    def _worker_ended(self, worker: asyncio.Task[None]) -> None:
        """Any end but the ordinary one takes the pool along: nobody may wait for it in vain."""
        if worker.cancelled():
            log.warning("worker_cancelled", pool=self.name, worker=worker.get_name())
            self._collapse("a worker was cancelled")
        elif (error := worker.exception()) is not None:
            log.error("worker_died", pool=self.name, worker=worker.get_name(), exc_info=error)
            self._collapse(f"a worker died of {error!r}")

    # --- stop -------------------------------------------------------------------------

    async def drain(self, deadline: float = DRAIN_S) -> StopReport:
        """Take nothing new, finish what was accepted, and return within ``deadline`` seconds.

        Shortly before the deadline what has not begun is discarded and what runs is told; then
        it is interrupted (CancelledError); at the deadline it is left behind.
        """
        self.start()
        ends_at = self._now() + deadline
        grace_s = min(GRACE_S, deadline / 4)
        self._close("it drains")
        if not await self._workers_end(by=ends_at - 2 * grace_s):
            self._discard_line()
            self._tell_running()
            if not await self._workers_end(by=ends_at - grace_s):
                self._interrupt_running()
                await self._workers_end_or_are_ended(by=ends_at)
        return self._report()

    async def abort(self, reason: str, *, deadline: float = GRACE_S) -> StopReport:
        """Discard the line and interrupt what runs, now. Returns within ``deadline`` seconds."""
        self.start()
        ends_at = self._now() + deadline
        self._collapse(reason)
        await self._workers_end_or_are_ended(by=ends_at)
        return self._report()

    def _collapse(self, reason: str) -> None:
        """Whoever waits wakes now: for room, for work, for the result of what has not begun."""
        self._close(reason)
        self._discard_line()
        self._tell_running()
        self._interrupt_running()

    def _close(self, reason: str) -> None:
        """The first reason stays."""
        if self._closed_because is None:
            self._closed_because = reason
            log.info("pool_closed", pool=self.name, reason=reason, depth=self._line.qsize())
            self._line.shutdown()

    def _discard_line(self) -> None:
        """One by one, where ``shutdown(immediate=True)`` would not say what it threw away."""
        while not self._line.empty():
            ticket = self._line.get_nowait()
            try:
                error = Discarded(f"pool {self.name}: {self._closed_because}")
                self._end(ticket, Outcome(TicketState.DISCARDED, error))
                self._discarded.append(ticket.name)
            finally:
                self._line.task_done()

    def _tell_running(self) -> None:
        for ticket in self._running:
            ticket.token.tell(Draining(f"pool {self.name}: {self._closed_because}"))

    def _interrupt_running(self) -> None:
        for ticket in self._running:
            ticket.interrupt()

    async def _workers_end(self, *, by: float) -> bool:
        """Whether they have by then; and with them all that was accepted."""
        _, pending = await asyncio.wait(self._workers, timeout=max(0.0, by - self._now()))
        return not pending

    async def _workers_end_or_are_ended(self, *, by: float) -> None:
        if await self._workers_end(by=by):
            return
        for worker in self._workers:
            worker.remove_done_callback(self._worker_ended)
            worker.cancel()
        # A worker of ours only waits, so this takes no more than a turn of the loop.
        await asyncio.wait(self._workers)

    # --- report -----------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """May be called from any thread."""
        now = self._now() if self._loop else 0.0
        queued, running = self._line.items(), list(self._running)
        return Snapshot(
            name=self.name,
            slots=self.slots,
            capacity=self.capacity,
            is_open=self._closed_because is None,
            depth=len(queued),
            oldest_age=longest(now, queued),
            active=len(running),
            longest_run=longest(now, running),
            waiting_for_room=self._waiting_for_room,
            submitted=self._answers["submitted"],
            refused_full=self._answers["full"],
            refused_closed=self._answers["closed"],
            refused_late=self._answers["late"],
            callers_gone=self._answers["caller gone"],
            accepted=self._answers["accepted"],
            succeeded=self._ends[TicketState.SUCCEEDED],
            failed=self._ends[TicketState.FAILED],
            cancelled=self._ends[TicketState.CANCELLED],
            shed=self._ends[TicketState.REJECTED],
            discarded=self._ends[TicketState.DISCARDED],
        )

    def _report(self) -> StopReport:
        report = StopReport(
            pool=self.name,
            reason=self._closed_because or "",
            succeeded=self._ends[TicketState.SUCCEEDED],
            failed=self._ends[TicketState.FAILED],
            cancelled=self._ends[TicketState.CANCELLED],
            rejected=self._ends[TicketState.REJECTED],
            discarded=tuple(self._discarded),
            interrupted=tuple(self._interrupted),
            unstoppable=tuple(self._unstoppable),
        )
        log.info("pool_stopped", **asdict(report))
        return report

    def _now(self) -> float:
        assert self._loop is not None
        return self._loop.time()


def longest(now: float, tickets: list[Ticket[Any]]) -> float:
    return max((now - ticket.since for ticket in tickets), default=0.0)
