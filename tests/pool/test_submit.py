"""What a submission is answered, and what becomes of its ticket."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

import pytest

from tasks.errors import Cancelled, DeadlinePassed, PoolClosed, PoolFull
from tasks.pool import Ticket, TicketState, Token, WorkerPool
from tests.pool.loops import Gate, cooperative, on_a_loop, quick, turns

# Results


@on_a_loop
async def test_a_ticket_has_what_its_work_returned() -> None:
    async with WorkerPool(slots=2, capacity=2, name="pool") as pool:
        ticket = await pool.submit("job", quick)
        assert ticket.state == TicketState.QUEUED
        assert await ticket.result() == "done"
        assert ticket.state == "succeeded"


@on_a_loop
async def test_an_error_of_the_work_is_its_ticket_s_and_the_worker_goes_on() -> None:
    async def broken(token: Token) -> None:
        raise ValueError("broken")

    async with WorkerPool(slots=1, capacity=2, name="pool") as pool:
        failing = await pool.submit("failing", broken)
        after = await pool.submit("after", quick)
        with pytest.raises(ValueError, match="broken"):
            await failing.result()
        assert failing.state == TicketState.FAILED
        assert await after.result() == "done"


@on_a_loop
async def test_what_is_no_coroutine_function_fails_its_own_ticket_only() -> None:
    def no_coroutine(token: Token) -> Any:
        return 7

    async with WorkerPool(slots=1, capacity=2, name="pool") as pool:
        wrong = await pool.submit("wrong", no_coroutine)
        with pytest.raises(TypeError):
            await wrong.result()
        assert await (await pool.submit("after", quick)).result() == "done"


@on_a_loop
async def test_work_that_cancels_itself_has_failed_and_was_not_cancelled() -> None:
    async def cancels_itself(token: Token) -> None:
        raise asyncio.CancelledError

    async with WorkerPool(slots=1, capacity=1, name="pool") as pool:
        ticket = await pool.submit("job", cancels_itself)
        with pytest.raises(RuntimeError, match="cancelled itself"):
            await ticket.result()
        assert ticket.state == TicketState.FAILED


@on_a_loop
async def test_who_stops_waiting_for_a_result_changes_nothing_about_the_work() -> None:
    gate = Gate()
    async with WorkerPool(slots=1, capacity=1, name="pool") as pool:
        ticket = await pool.submit("job", gate.work("job"))
        waiter = asyncio.ensure_future(ticket.result())
        await turns()
        waiter.cancel()
        await asyncio.wait({waiter})
        assert waiter.cancelled()
        gate.opened.set()
        assert await ticket.result() == "job"
        assert not ticket.token.cancelled


@on_a_loop
async def test_work_sees_the_context_of_its_submitter() -> None:
    who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")

    async def ask(token: Token) -> str:
        seen = who.get()
        who.set("changed by the work")
        return seen

    async with WorkerPool(slots=1, capacity=2, name="pool") as pool:
        who.set("first")
        first = await pool.submit("first", ask)
        who.set("second")
        second = await pool.submit("second", ask)
        assert await first.result() == "first"
        assert await second.result() == "second"
        assert who.get() == "second"


# Room


@on_a_loop
async def test_slots_and_capacity_are_taken_then_the_pool_is_full() -> None:
    gate = Gate()
    async with WorkerPool(slots=2, capacity=3, name="pool") as pool:
        for number in range(5):
            await pool.submit(f"job-{number}", gate.work(f"job-{number}"))
        with pytest.raises(PoolFull) as refusal:
            await pool.submit("one too many", quick)
        assert refusal.value.retry_after == 1
        await turns()
        assert gate.begun == ["job-0", "job-1"]
        now = pool.snapshot()
        assert (now.depth, now.active, now.utilisation, now.rejected) == (3, 2, 1.0, 1)
        gate.opened.set()


@on_a_loop
async def test_a_producer_waits_for_room_at_most_as_long_as_it_said() -> None:
    gate = Gate()
    async with WorkerPool(slots=1, capacity=1, name="pool") as pool:
        for name in ("runs", "waits"):
            await pool.submit(name, gate.work(name))
        with pytest.raises(PoolFull):
            await pool.submit("patient", quick, wait=0.02)
        producer = asyncio.ensure_future(pool.submit("lucky", quick, wait=20.0))
        await turns()
        assert pool.snapshot().waiting_for_room == 1
        gate.opened.set()
        assert await (await producer).result() == "done"


@on_a_loop
async def test_a_producer_cancelled_while_it_waits_leaves_nothing_in_the_pool() -> None:
    gate = Gate()
    async with WorkerPool(slots=1, capacity=1, name="pool") as pool:
        for name in ("runs", "waits"):
            await pool.submit(name, gate.work(name))
        producer = asyncio.ensure_future(pool.submit("gone", gate.work("gone"), wait=20.0))
        await turns()
        producer.cancel()
        await asyncio.wait({producer})
        assert producer.cancelled()
        gate.opened.set()
    now = pool.snapshot()
    assert (now.callers_gone, now.accepted, now.refused_closed) == (1, 2, 0)
    assert gate.begun == ["runs", "waits"]


@on_a_loop
async def test_retry_after_follows_from_the_measured_pace() -> None:
    gate = Gate()
    pool = WorkerPool(slots=2, capacity=10, name="pool")
    pool.start()
    pool._note_run_time(4.0)
    for number in range(12):
        await pool.submit(str(number), gate.work(str(number)))
    with pytest.raises(PoolFull) as refusal:
        await pool.submit("13", quick)
    assert refusal.value.retry_after == 20  # ten in line, two at a time, 4 s each
    gate.opened.set()
    await pool.drain()


# Priority


@on_a_loop
async def test_the_more_important_starts_earlier() -> None:
    gate = Gate()
    async with WorkerPool(slots=1, capacity=9, name="pool") as pool:
        await pool.submit("running", gate.work("running"))
        await turns()
        for name, priority in (("low", -1), ("usual", 0), ("high", 5), ("usual too", 0)):
            await pool.submit(name, gate.work(name), priority=priority)
        gate.opened.set()
    assert gate.begun == ["running", "high", "usual", "usual too", "low"]


@on_a_loop
async def test_shedding_gives_the_place_of_the_least_important_to_the_more_important() -> None:
    gate = Gate()
    async with WorkerPool(slots=1, capacity=2, name="pool", policy="shed") as pool:
        await pool.submit("running", gate.work("running"))
        old = await pool.submit("old", gate.work("old"))
        young = await pool.submit("young", gate.work("young"))
        await pool.submit("urgent", gate.work("urgent"), priority=1)
        assert (old.state, young.state) == (TicketState.QUEUED, TicketState.REJECTED)
        with pytest.raises(PoolFull):
            await young.result()
        with pytest.raises(PoolFull):
            await pool.submit("equal", gate.work("equal"))
        gate.opened.set()
    assert gate.begun == ["running", "urgent", "old"]
    assert (pool.snapshot().shed, pool.snapshot().rejected) == (1, 2)


# Cancel


@on_a_loop
async def test_a_ticket_cancelled_in_the_tick_of_its_submission_never_runs() -> None:
    gate = Gate()
    async with WorkerPool(slots=1, capacity=1, name="pool") as pool:
        await turns()  # the worker waits, and the submission will wake it
        ticket = await pool.submit("job", gate.work("job"))
        assert ticket.cancel("customer left")
        assert ticket.state == TicketState.CANCELLED
        with pytest.raises(Cancelled, match="customer left"):
            await ticket.result()
    assert gate.begun == []


@on_a_loop
async def test_a_cancelled_ticket_makes_room_at_once() -> None:
    gate = Gate()
    async with WorkerPool(slots=1, capacity=1, name="pool") as pool:
        await pool.submit("running", gate.work("running"))
        queued = await pool.submit("queued", gate.work("queued"))
        queued.cancel("not needed")
        await pool.submit("next", gate.work("next"))
        gate.opened.set()
    assert gate.begun == ["running", "next"]


@on_a_loop
async def test_running_work_is_told_and_ends_where_it_looks() -> None:
    async with WorkerPool(slots=1, capacity=1, name="pool") as pool:
        ticket = await pool.submit("job", cooperative)
        await turns()
        assert ticket.state == TicketState.RUNNING
        assert ticket.cancel("customer left")
        with pytest.raises(Cancelled, match="customer left"):
            await ticket.result()
        assert ticket.state == TicketState.CANCELLED
        assert not ticket.cancel("again")


@on_a_loop
async def test_work_that_succeeds_although_it_was_told_has_succeeded() -> None:
    gate = Gate()
    async with WorkerPool(slots=1, capacity=1, name="pool") as pool:
        ticket = await pool.submit("job", gate.work("job"))
        await turns()
        ticket.cancel("too late")
        gate.opened.set()
        assert await ticket.result() == "job"
        assert ticket.state == TicketState.SUCCEEDED


@on_a_loop
async def test_cancelled_by_another_ticket_s_end_is_a_failure_of_this_one() -> None:
    async with WorkerPool(slots=2, capacity=2, name="pool") as pool:
        inner = await pool.submit("inner", cooperative)

        async def waits_for_inner(token: Token) -> None:
            await inner.result()

        outer = await pool.submit("outer", waits_for_inner)
        await turns()
        inner.cancel("only this one")
        with pytest.raises(Cancelled):
            await outer.result()
        assert (inner.state, outer.state) == (TicketState.CANCELLED, TicketState.FAILED)


# Deadline


@pytest.mark.parametrize("deadline", [0.0, -1.0])
@on_a_loop
async def test_a_deadline_that_has_passed_refuses(deadline: float) -> None:
    async with WorkerPool(slots=1, capacity=1, name="pool") as pool:
        with pytest.raises(DeadlinePassed):
            await pool.submit("job", quick, deadline=deadline)
    assert (pool.snapshot().refused_late, pool.snapshot().accepted) == (1, 0)


@on_a_loop
async def test_a_deadline_that_passes_in_the_line_cancels_at_that_moment() -> None:
    gate = Gate()
    async with WorkerPool(slots=1, capacity=1, name="pool") as pool:
        await pool.submit("running", gate.work("running"))
        ticket = await pool.submit("job", gate.work("job"), deadline=0.02)
        with pytest.raises(DeadlinePassed):
            await ticket.result()
        assert ticket.state == TicketState.CANCELLED
        assert pool.snapshot().depth == 0
        gate.opened.set()
    assert gate.begun == ["running"]


@on_a_loop
async def test_a_deadline_is_kept_by_a_start_and_leaves_the_running_work_alone() -> None:
    gate = Gate()
    async with WorkerPool(slots=1, capacity=1, name="pool") as pool:
        ticket = await pool.submit("job", gate.work("job"), deadline=0.01)
        await asyncio.sleep(0.03)
        assert ticket.state == TicketState.RUNNING
        gate.opened.set()
        assert await ticket.result() == "job"


@on_a_loop
async def test_a_wait_for_room_ends_at_the_deadline() -> None:
    gate = Gate()
    async with WorkerPool(slots=1, capacity=1, name="pool") as pool:
        for name in ("runs", "waits"):
            await pool.submit(name, gate.work(name))
        with pytest.raises(DeadlinePassed):
            await pool.submit("late", quick, wait=20.0, deadline=0.01)
        gate.opened.set()


# Threads and loops


@on_a_loop
async def test_other_threads_come_in_through_their_own_door() -> None:
    pool = WorkerPool(slots=1, capacity=1, name="pool")
    with pytest.raises(RuntimeError, match="has not been started"):
        pool.submit_threadsafe("too early", quick)
    async with pool:
        ticket: Ticket[str] = await asyncio.to_thread(
            lambda: pool.submit_threadsafe("job", quick).result(10)
        )
        assert await ticket.result() == "done"
    with pytest.raises(PoolClosed):
        await asyncio.to_thread(lambda: pool.submit_threadsafe("late", quick).result(10))


def test_a_thread_that_comes_after_the_loop_is_told_that_the_pool_is_closed() -> None:
    async def start() -> WorkerPool:
        pool = WorkerPool(slots=1, capacity=1, name="pool")
        pool.start()
        await pool.drain()
        return pool

    pool = asyncio.run(start())
    with pytest.raises(PoolClosed):
        pool.submit_threadsafe("late", quick)


@on_a_loop
async def test_many_threads_submit_at_once_and_each_gets_its_own_result() -> None:
    def numbered(number: int) -> Callable[[Token], Coroutine[Any, Any, int]]:
        async def work(token: Token) -> int:
            return number

        return work

    futures: dict[int, Future[Ticket[int]]] = {}

    def submit_ten(first: int) -> None:
        for number in range(first, first + 10):
            futures[number] = pool.submit_threadsafe(str(number), numbered(number), wait=10)

    async with WorkerPool(slots=3, capacity=5, name="pool") as pool:
        threads = [threading.Thread(target=submit_ten, args=(n * 10,)) for n in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join, 10)
        for number, future in futures.items():
            assert await (await asyncio.wrap_future(future)).result() == number
    assert pool.snapshot().succeeded == 100


def test_a_pool_belongs_to_one_loop() -> None:
    pool = WorkerPool(slots=1, capacity=1, name="pool")

    async def use() -> None:
        await (await pool.submit("job", quick)).result()

    asyncio.run(use())
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(use())


@pytest.mark.parametrize(("slots", "capacity"), [(0, 1), (1, 0)])
def test_a_pool_without_slots_or_room_is_refused(slots: int, capacity: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        WorkerPool(slots=slots, capacity=capacity, name="pool")
