"""Runs ``async def`` bodies: in a worker of threads all on one event loop, through one pool.

A thread takes a slot at the gate, claims the job, hands the coroutine over, waits and settles.
Elsewhere a coroutine gets a loop of its own.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

import structlog
from asgiref.sync import sync_to_async
from celery import signals
from celery.concurrency.thread import TaskPool as ThreadPool
from celery.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded
from django.db import DatabaseError, InterfaceError

from tasks import connections
from tasks.board import BOARD
from tasks.errors import Discarded, Draining, Interrupted, PoolClosed
from tasks.pool import Ticket, Token, WorkerPool
from tasks.run import Run, current_run

log = structlog.get_logger(__name__)

type Body = Callable[[], Coroutine[Any, Any, Any]]

# Seconds between two looks at the board, in memory: how late a coroutine hears that it must stop.
WATCH_S = 0.1
# Seconds an interrupted coroutine has to end. Less than a drain waits before it stops the worker.
UNWIND_S = 0.8


class HardLimit(BaseException):
    """Past all that retries a body: a hard time limit is the end of the job."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


@dataclass(frozen=True)
class Limits:
    """Seconds; None is no limit."""

    soft_s: float | None
    hard_s: float | None

    @property
    def patience_s(self) -> float | None:
        """How long the thread waits for a coroutine that may ignore its limit."""
        return None if self.hard_s is None else self.hard_s + UNWIND_S


@dataclass(frozen=True)
class Answer:
    """How a body ended by itself. To the pool an error of the body is nothing to report."""

    value: Any = None
    error: Exception | None = None


# --- one coroutine ------------------------------------------------------------------------


def run_coroutine(body: Body) -> Any:
    """Run the body to its end and return what it returns."""
    run = current_run()
    shared = _shared
    if shared is None or run.slot is None or threading.current_thread() is shared.thread:
        return asyncio.run(interruptible(body))
    return shared.run(run, body, limits_of(run.task))


async def interruptible(body: Body) -> Any:
    """On a loop of its own: a CancelledError where a plain body would look with check()."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    with current_run().on_interrupt(partial(loop.call_soon_threadsafe, task.cancel)):
        return await body()


def limits_of(task: Any) -> Limits:
    """As Celery's pool of processes finds them: of the call, of the task, of the worker."""
    hard, soft = task.request.timelimit or (None, None)
    conf = task.app.conf
    return Limits(
        soft_s=soft or task.soft_time_limit or conf.task_soft_time_limit,
        hard_s=hard or task.time_limit or conf.task_time_limit,
    )


async def answered(body: Body, limits: Limits, token: Token) -> Answer:
    try:
        return Answer(await limited(body, limits))
    except (DatabaseError, InterfaceError) as exc:
        # Celery's hooks see the connection of the slot's thread, not the one coroutines use.
        await sync_to_async(connections.drop_unusable)()
        return Answer(error=exc)
    except Exception as exc:
        return Answer(error=exc)
    except asyncio.CancelledError:
        raise
    except BaseException as exc:  # it would stop the loop of all the others
        return Answer(error=RuntimeError(f"the body raised {exc!r}"))


async def limited(body: Body, limits: Limits) -> Any:
    try:
        async with asyncio.timeout(limits.hard_s) as hard:
            async with asyncio.timeout(limits.soft_s) as soft:
                return await body()
    except TimeoutError:
        if hard.expired():
            raise TimeLimitExceeded(limits.hard_s) from None
        if soft.expired():
            raise SoftTimeLimitExceeded(limits.soft_s) from None
        raise


# --- the loop of all ----------------------------------------------------------------------


class SharedLoop:
    """A thread with an event loop, and the pool that bounds what runs on it."""

    def __init__(self, slots: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.pool = WorkerPool(slots=slots, capacity=slots, name="coroutines")
        self.thread = threading.Thread(target=self._work, name="coroutines", daemon=True)
        self._runs: dict[Ticket[Answer], Run] = {}
        # Of batches: each waits for one coroutine.
        self.threads = ThreadPoolExecutor(slots, thread_name_prefix="batch")
        self.gate = Gate(slots)

    def _work(self) -> None:
        self.loop.run_until_complete(self._watch())
        # What could not be interrupted goes on, and the process ends without it.
        self.loop.run_forever()

    def run(self, run: Run, body: Body, limits: Limits) -> Any:
        """Called in the thread of the slot. Its context variables are the coroutine's too."""
        call = asyncio.run_coroutine_threadsafe(self._call(run, body, limits), self.loop)
        try:
            answer = call.result(limits.patience_s)
        except TimeoutError as exc:
            call.cancel()
            log.error("coroutine_goes_on", job_id=str(run.job_id))
            raise HardLimit(limits.hard_s or 0.0) from exc
        except (Discarded, PoolClosed) as exc:
            raise Draining(str(exc)) from exc
        if isinstance(answer.error, TimeLimitExceeded):
            raise HardLimit(limits.hard_s or 0.0)
        if answer.error is not None:
            raise answer.error
        return answer.value

    async def _call(self, run: Run, body: Body, limits: Limits) -> Answer:
        async def work(token: Token) -> Answer:
            run.slot.has_begun = True
            try:
                return await answered(body, limits, token)
            finally:
                run.slot.free()

        ticket = await self.pool.submit(str(run.job_id), work)
        self._runs[ticket] = run
        try:
            return await ticket.result()
        except asyncio.CancelledError:
            ticket.cancel("its time is over")  # it must not begin after its end
            raise
        finally:
            del self._runs[ticket]

    async def _watch(self) -> None:
        """Cancel, a lost lease and the drain reach the coroutine where it waits."""
        self.pool.start()
        while not BOARD.is_draining:
            if BOARD.drain_has_begun:
                self.gate.close()
            for ticket, run in list(self._runs.items()):
                stop_if_told(ticket, run)
            await asyncio.sleep(WATCH_S)
        self.gate.close()
        await self.pool.abort("the worker stops", deadline=UNWIND_S)


def stop_if_told(ticket: Ticket[Answer], run: Run) -> None:
    if not BOARD.is_open:
        return
    try:
        run.check()
    except Interrupted as reason:
        ticket.token.tell(reason)
        ticket.interrupt()


_shared: SharedLoop | None = None


# --- the gate --------------------------------------------------------------------------------


class Gate:
    """The slots that coroutines share. Each takes one before its job is claimed: what is claimed
    never waits. Who came first is served first, so that neither many small messages nor one large
    one keeps the others waiting.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._free = slots
        self._is_closed = False
        self._lock = threading.Lock()
        self._line: deque[Waiter] = deque()

    @property
    def in_use(self) -> int:
        return self.slots - self._free

    @contextmanager
    def line(self) -> Iterator[Waiter]:
        """A place in the line, for as long as the block lasts."""
        waiter = Waiter(self, self._lock)
        with self._lock:
            self._line.append(waiter)
        try:
            yield waiter
        finally:
            with self._lock:
                self._line.remove(waiter)
                self._wake()

    def take(self, waiter: Waiter, most: int, patience_s: float) -> list[Slot]:
        with self._lock:
            waiter.turn.wait_for(lambda: self._is_closed or self._is_turn_of(waiter), patience_s)
            if self._is_closed or not self._is_turn_of(waiter):
                return []
            number = min(most, self._free)
            self._free -= number
        return [Slot(self) for _ in range(number)]

    def _is_turn_of(self, waiter: Waiter) -> bool:
        return self._free > 0 and self._line[0] is waiter

    def put_back(self) -> None:
        with self._lock:
            self._free += 1
            self._wake()

    def _wake(self) -> None:
        if self._line:
            self._line[0].turn.notify()

    def close(self) -> None:
        """The worker drains: nothing starts any more."""
        with self._lock:
            self._is_closed = True
            for waiter in self._line:
                waiter.turn.notify()


class Waiter:
    """Where a message waits for slots."""

    def __init__(self, gate: Gate, lock: threading.Lock) -> None:
        self._gate = gate
        self.turn = threading.Condition(lock)

    def take(self, most: int, patience_s: float) -> list[Slot]:
        """As many as are free; none: the worker drains, or it took longer than ``patience_s``."""
        return self._gate.take(self, most, max(0.0, patience_s))


class Slot:
    """Of one coroutine, which may go on when nobody waits for it any more."""

    def __init__(self, gate: Gate) -> None:
        self._gate: Gate | None = gate
        self.has_begun = False

    def leave(self) -> None:
        """By the thread that took it: free, unless the coroutine frees it."""
        if not self.has_begun:
            self.free()

    def free(self) -> None:
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.put_back()


def gate_of(task: Any) -> Gate | None:
    """What a body of this task has to pass in this process; None unless it is a coroutine and
    shares a loop."""
    if _shared is None or not inspect.iscoroutinefunction(inspect.unwrap(task.run)):
        return None
    return _shared.gate


def slots_in_use() -> int:
    return _shared.gate.in_use if _shared is not None else 0


# Jobs that came alone and passed the gate: when they were claimed (time.time()), by id and
# dispatch number. Celery counts a message as started although it still waits there.
_claimed: dict[tuple[UUID, int], float] = {}


@contextmanager
def claimed(job_id: UUID, dispatch_no: int) -> Iterator[None]:
    _claimed[job_id, dispatch_no] = time.time()
    try:
        yield
    finally:
        del _claimed[job_id, dispatch_no]


def claimed_at(job_id: UUID, dispatch_no: int) -> float | None:
    return _claimed.get((job_id, dispatch_no))


def in_a_thread(function: Callable[..., None], *args: Any) -> Future[None]:
    """Of the batches of this process, in the context of the caller."""
    assert _shared is not None
    return _shared.threads.submit(copy_context().run, function, *args)


def install() -> None:
    """Workers of threads share one loop, from their first connection to the broker on."""
    signals.worker_ready.connect(share_a_loop)


def share_a_loop(sender: Any, **_: Any) -> None:
    global _shared  # noqa: PLW0603  # one per process, like the loop of a program
    if _shared is None and isinstance(sender.pool, ThreadPool):
        connections.share()
        _shared = SharedLoop(sender.pool.limit)
        _shared.thread.start()
