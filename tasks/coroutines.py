"""Runs ``async def`` bodies: in a worker of threads all on one event loop, through one pool.

The thread of a slot claims the job, hands the coroutine over, waits and settles. Elsewhere a
coroutine gets a loop of its own.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any

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
from tasks.run import NO_RUN, Run, current_run

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
    if shared is None or run is NO_RUN or threading.current_thread() is shared.thread:
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
        self.free_slots = Slots(slots)

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
            return await answered(body, limits, token)

        # There is a slot for each thread, unless a coroutine that goes on keeps one.
        ticket = await self.pool.submit(str(run.job_id), work)
        self._runs[ticket] = run
        try:
            return await ticket.result()
        finally:
            del self._runs[ticket]

    async def _watch(self) -> None:
        """Cancel, a lost lease and the drain reach the coroutine where it waits."""
        self.pool.start()
        while not BOARD.is_draining:
            for ticket, run in list(self._runs.items()):
                stop_if_told(ticket, run)
            await asyncio.sleep(WATCH_S)
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


# --- batches ------------------------------------------------------------------------------


class Slots:
    """Coroutines of batches that may run at once. Who came first is served first, so that many
    small batches never keep a large one waiting."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._free = number
        self._turn = threading.Lock()
        self._freed = threading.Condition()

    @contextmanager
    def taken(self, number: int, patience_s: float) -> Iterator[bool]:
        """False: there were not so many free within ``patience_s`` seconds."""
        is_taken = self._take(number, patience_s)
        try:
            yield is_taken
        finally:
            if is_taken:
                with self._freed:
                    self._free += number
                    self._freed.notify_all()

    def _take(self, number: int, patience_s: float) -> bool:
        ends_at = time.monotonic() + patience_s
        if not self._turn.acquire(timeout=patience_s):
            return False
        try:
            with self._freed:
                left_s = ends_at - time.monotonic()
                if not self._freed.wait_for(lambda: self._free >= number, max(0.0, left_s)):
                    return False
                self._free -= number
                return True
        finally:
            self._turn.release()


def slots_for(task: Any) -> int:
    """How many bodies of this task one batch may run at once here; 1 unless they are coroutines on
    a shared loop."""
    is_coroutine = inspect.iscoroutinefunction(inspect.unwrap(task.run))
    return _shared.free_slots.number if _shared is not None and is_coroutine else 1


@contextmanager
def slots_taken(number: int, patience_s: float) -> Iterator[bool]:
    """For a batch of so many at once. False: they were not free in time."""
    if _shared is None or number <= 1:
        yield True
        return
    with _shared.free_slots.taken(number, patience_s) as is_taken:
        yield is_taken


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
