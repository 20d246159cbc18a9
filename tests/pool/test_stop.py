"""Drain and abort: in time, in any order, and nothing unaccounted for."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

import pytest
from structlog.testing import capture_logs

from tasks.errors import Discarded, Draining, PoolClosed
from tasks.pool import StopReport, Ticket, TicketState, Token, WorkerPool
from tests.pool.loops import Gate, cooperative, on_a_loop, quick, turns


def adds_up(pool: WorkerPool) -> bool:
    s = pool.snapshot()
    refused = s.refused_full + s.refused_closed + s.refused_late + s.callers_gone
    ended = s.succeeded + s.failed + s.cancelled + s.shed + s.discarded
    return s.submitted == s.accepted + refused + s.waiting_for_room and (
        s.accepted == s.depth + s.active + ended
    )


# Drain


@on_a_loop
async def test_a_drain_finishes_what_was_accepted_and_takes_nothing_new() -> None:
    gate = Gate()
    pool = WorkerPool(slots=1, capacity=3, name="pool")
    tickets = [await pool.submit(name, gate.work(name)) for name in "abc"]
    draining = asyncio.ensure_future(pool.drain(20.0))
    await turns()
    with pytest.raises(PoolClosed, match="it drains"):
        await pool.submit("late", quick)
    gate.opened.set()
    report = await draining
    assert report.is_clean
    assert report.succeeded == 3
    assert all(ticket.state == TicketState.SUCCEEDED for ticket in tickets)
    assert pool.snapshot().refused_closed == 1
    assert not pool.snapshot().is_open


@on_a_loop
async def test_at_the_deadline_what_has_not_begun_is_discarded_by_name() -> None:
    gate = Gate()
    pool = WorkerPool(slots=1, capacity=2, name="pool")
    running = await pool.submit("running", gate.work("running"))
    waiting = [await pool.submit(name, gate.work(name)) for name in ("first", "second")]
    report = await pool.drain(0.2)
    assert report.discarded == ("first", "second")
    assert report.interrupted == ("running",)
    assert report.unstoppable == ()
    assert (report.succeeded, report.cancelled) == (0, 1)
    assert gate.begun == ["running"]
    with pytest.raises(Draining):
        await running.result()
    for ticket in waiting:
        with pytest.raises(Discarded):
            await ticket.result()


@on_a_loop
async def test_running_work_is_told_before_it_is_interrupted() -> None:
    async def saves_its_work(token: Token) -> str:
        await token.wait()
        return "saved"

    pool = WorkerPool(slots=2, capacity=1, name="pool")
    saves = await pool.submit("saves", saves_its_work)
    looks = await pool.submit("looks", cooperative)
    report = await pool.drain(0.4)
    assert await saves.result() == "saved"
    assert looks.state == TicketState.CANCELLED
    assert report.interrupted == ("looks",)
    assert report.unstoppable == ()


@pytest.mark.parametrize("deadline", [0.0, 0.05, 0.4])
@on_a_loop
async def test_what_cannot_be_interrupted_is_named_and_the_drain_ends_in_time(
    deadline: float,
) -> None:
    gate = Gate()
    pool = WorkerPool(slots=2, capacity=1, name="pool")
    ticket = await pool.submit("stubborn", gate.stubborn)
    other = await pool.submit("cooperative", cooperative)
    await turns()
    begun = time.monotonic()
    report = await pool.drain(deadline)
    assert time.monotonic() - begun < deadline + 0.2
    assert report.unstoppable == ("stubborn",)
    assert report.interrupted == ("cooperative",)
    assert (ticket.state, other.state) == (TicketState.DISCARDED, TicketState.CANCELLED)
    with pytest.raises(Discarded, match="could not be interrupted"):
        await ticket.result()
    assert adds_up(pool)
    gate.opened.set()


@on_a_loop
async def test_the_late_end_of_work_left_behind_changes_nothing() -> None:
    gate = Gate()
    pool = WorkerPool(slots=1, capacity=1, name="pool")
    ticket = await pool.submit("job", gate.stubborn)
    await turns()
    before = await pool.drain(0.02)
    gate.opened.set()
    await turns()
    assert ticket.state == TicketState.DISCARDED
    assert await pool.drain(0.02) == before
    assert before.succeeded == 0


@on_a_loop
async def test_an_interrupted_work_may_clean_up_undisturbed() -> None:
    cleaned = []

    async def cleans_up(token: Token) -> None:
        try:
            await asyncio.sleep(20)
        finally:
            await asyncio.sleep(0.05)
            cleaned.append("yes")

    pool = WorkerPool(slots=1, capacity=1, name="pool")
    await pool.submit("job", cleans_up)
    await turns()
    stops = []
    for _ in range(3):
        stops.append(asyncio.ensure_future(pool.abort("again and again", deadline=10.0)))
        await turns()
    await asyncio.gather(*stops)
    assert cleaned == ["yes"]


# Abort


@on_a_loop
async def test_an_abort_discards_the_line_by_name_and_interrupts_what_runs() -> None:
    gate = Gate()
    pool = WorkerPool(slots=2, capacity=3, name="pool")
    tickets = [await pool.submit(name, gate.work(name)) for name in "abcde"]
    begun = time.monotonic()
    report = await pool.abort("database gone")
    assert time.monotonic() - begun < 0.5
    assert report.reason == "database gone"
    assert report.discarded == ("c", "d", "e")
    assert sorted(report.interrupted) == ["a", "b"]
    assert report.succeeded == 0
    assert [ticket.state for ticket in tickets] == ["cancelled"] * 2 + ["discarded"] * 3
    with pytest.raises(PoolClosed, match="database gone"):
        await pool.submit("late", quick)


@on_a_loop
async def test_an_abort_wakes_everybody_who_waits() -> None:
    gate = Gate()
    pool = WorkerPool(slots=1, capacity=1, name="pool")
    running = await pool.submit("running", gate.work("running"))
    queued = await pool.submit("queued", gate.work("queued"))
    waiters = [
        asyncio.ensure_future(pool.submit("no room", quick, wait=20.0)),
        asyncio.ensure_future(running.result()),
        asyncio.ensure_future(queued.result()),
    ]
    await turns()
    await pool.abort("database gone")
    answers = await asyncio.gather(*waiters, return_exceptions=True)
    assert [type(answer) for answer in answers] == [PoolClosed, Draining, Discarded]


@on_a_loop
async def test_a_close_wakes_producers_who_wait_for_room_and_a_cancelled_one_stays_cancelled() -> (
    None
):
    gate = Gate()
    pool = WorkerPool(slots=1, capacity=1, name="pool")
    for name in ("runs", "waits"):
        await pool.submit(name, gate.work(name))
    closed, cancelled = (
        asyncio.ensure_future(pool.submit(name, quick, wait=20.0)) for name in ("one", "two")
    )
    await turns()
    cancelled.cancel()
    draining = asyncio.ensure_future(pool.drain(10.0))
    await asyncio.wait({closed, cancelled})
    assert isinstance(closed.exception(), PoolClosed)
    assert cancelled.cancelled()
    gate.opened.set()
    await draining
    now = pool.snapshot()
    assert (now.refused_closed, now.callers_gone) == (1, 1)


# Fatal errors


class Fatal(BaseException):
    """Not an error of the work: nothing goes on after it."""


@on_a_loop
async def test_a_fatal_error_wakes_everybody_at_once() -> None:
    gate = Gate()

    async def fatal(token: Token) -> None:
        await gate.opened.wait()
        raise Fatal("the end")

    pool = WorkerPool(slots=2, capacity=1, name="pool")
    doomed = await pool.submit("fatal", fatal)
    beside = await pool.submit("beside", cooperative)
    queued = await pool.submit("queued", quick)
    producer = asyncio.ensure_future(pool.submit("no room", quick, wait=20.0))
    await turns()
    gate.opened.set()
    with pytest.raises(PoolClosed, match="the end"):
        await producer
    with pytest.raises(Fatal):
        await doomed.result()
    with pytest.raises(Draining):
        await beside.result()
    with pytest.raises(Discarded):
        await queued.result()
    report = await pool.drain(1.0)
    assert report.discarded == ("queued",)
    assert report.failed == 1


@on_a_loop
async def test_a_worker_cancelled_from_outside_closes_the_pool_and_loses_nothing() -> None:
    gate = Gate()
    pool = WorkerPool(slots=2, capacity=1, name="pool")
    tickets = [await pool.submit(name, gate.work(name)) for name in "abc"]
    await turns()
    pool._workers[0].cancel()
    await asyncio.wait_for(
        asyncio.gather(*(t.result() for t in tickets), return_exceptions=True), 1
    )
    assert all(ticket.state.is_terminal for ticket in tickets)
    with pytest.raises(PoolClosed, match="a worker was cancelled"):
        await pool.submit("late", quick)
    await asyncio.wait_for(pool._line.join(), 1)
    assert adds_up(pool)


# Every order


type Stop = Callable[[WorkerPool], Awaitable[StopReport]]


async def drain(pool: WorkerPool) -> StopReport:
    return await pool.drain(0.1)


async def abort(pool: WorkerPool) -> StopReport:
    return await pool.abort("stopped", deadline=0.1)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("second", [drain, abort])
@pytest.mark.parametrize("first", [drain, abort])
@on_a_loop
async def test_stopping_twice_in_any_order_is_harmless_and_bounded(
    first: Callable[[WorkerPool], Awaitable[StopReport]], second: type[None], together: bool
) -> None:
    gate = Gate()
    pool = WorkerPool(slots=3, capacity=2, name="pool")
    works = (gate.work("waits"), cooperative, gate.stubborn, quick, quick)
    tickets: list[Ticket[object]] = []
    for number, work in enumerate(works):
        tickets.append(await pool.submit(str(number), work))
    await turns()
    begun = time.monotonic()
    if together:
        reports = await asyncio.gather(first(pool), second(pool))
    else:
        reports = [await first(pool), await second(pool)]
    assert time.monotonic() - begun < 0.5
    assert reports[1].unstoppable == ("2",)
    assert all(ticket.state.is_terminal for ticket in tickets)
    assert pool.snapshot().discarded == 3
    assert adds_up(pool)
    gate.opened.set()


@pytest.mark.parametrize("stop", [drain, abort])
@on_a_loop
async def test_a_pool_that_was_never_used_stops_at_once(
    stop: Stop,
) -> None:
    pool = WorkerPool(slots=3, capacity=2, name="pool")
    report = await stop(pool)
    assert report.is_clean
    with pytest.raises(PoolClosed):
        await pool.submit("late", quick)


@on_a_loop
async def test_a_drain_asked_for_by_the_pool_s_own_work_is_bounded_too() -> None:
    pool = WorkerPool(slots=1, capacity=1, name="pool")

    async def stops_the_pool(token: Token) -> None:
        await pool.drain(0.1)

    ticket = await pool.submit("job", stops_the_pool)
    with pytest.raises(Draining):
        await ticket.result()


@on_a_loop
async def test_an_exception_that_leaves_the_block_aborts() -> None:
    gate = Gate()
    pool = WorkerPool(slots=1, capacity=1, name="pool")

    async def use() -> None:
        async with pool:
            await pool.submit("job", gate.work("job"))
            raise ValueError("outside")

    with pytest.raises(ValueError, match="outside"):
        await use()
    report = await pool.drain(0.0)
    assert report.reason == "ValueError: outside"
    assert report.discarded == ("job",)
    assert gate.begun == []


# What is said of it


@on_a_loop
async def test_the_log_tells_a_closed_pool_a_cancelled_caller_and_a_cancelled_worker_apart() -> (
    None
):
    gate = Gate()
    with capture_logs() as logs:
        pool = WorkerPool(slots=1, capacity=1, name="pool")
        for work in (gate.stubborn, quick):
            await pool.submit("job", work)
        caller = asyncio.ensure_future(pool.submit("no room", quick, wait=20.0))
        await turns()
        caller.cancel()
        await asyncio.wait({caller})
        await pool.abort("told to", deadline=0.01)
        gate.opened.set()
        await turns()
    told = [entry["event"] for entry in logs]
    assert told == [
        "submitter_cancelled", "pool_closed", "work_left_behind", "pool_stopped", "work_ended_late",
    ]  # fmt: skip
    with capture_logs() as logs:
        pool = WorkerPool(slots=1, capacity=1, name="pool")
        pool.start()
        pool._workers[0].cancel()
        await turns()
    assert [entry["event"] for entry in logs] == ["worker_cancelled", "pool_closed"]


# The bookkeeping of the line


@on_a_loop
async def test_every_get_is_marked_done_whatever_becomes_of_the_work() -> None:
    async def broken(token: Token) -> None:
        raise ValueError

    gate = Gate()
    pool = WorkerPool(slots=2, capacity=10, name="pool")
    for work in (quick, broken, gate.stubborn, cooperative, quick, quick):
        await pool.submit("job", work)
    await pool.abort("stopped", deadline=0.05)
    await asyncio.wait_for(pool._line.join(), 1.0)
    with pytest.raises(ValueError, match="too many times"):
        pool._line.task_done()
    gate.opened.set()


@on_a_loop
async def test_of_ten_thousand_tickets_half_cancelled_while_draining_each_ends_once() -> None:
    random.seed(5)
    started: set[str] = set()
    ran_after_cancel: list[str] = []
    cancelled_before_start: set[str] = set()

    def work(name: str):  # type: ignore[no-untyped-def]
        async def work(token: Token) -> str:
            started.add(name)
            if name in cancelled_before_start:
                ran_after_cancel.append(name)
            await asyncio.sleep(0)
            token.check()
            return name

        return work

    pool = WorkerPool(slots=50, capacity=10_000, name="pool")
    tickets = [
        await pool.submit(str(number), work(str(number)), priority=number % 3)
        for number in range(10_000)
    ]
    draining = asyncio.ensure_future(pool.drain(20.0))
    to_cancel = random.sample(tickets, 5_000)
    for number, ticket in enumerate(to_cancel):
        if ticket.state == TicketState.QUEUED:
            cancelled_before_start.add(ticket.name)
        ticket.cancel("half of them")
        if number % 100 == 0:
            await asyncio.sleep(0)
    report = await draining
    assert ran_after_cancel == []
    assert not started & cancelled_before_start
    assert len(cancelled_before_start) > 1_000
    assert report.is_clean
    assert report.succeeded + report.cancelled == 10_000
    by_state = [ticket.state for ticket in tickets]
    assert by_state.count(TicketState.SUCCEEDED) == report.succeeded >= 5_000
    assert by_state.count(TicketState.CANCELLED) == report.cancelled
    assert adds_up(pool)
