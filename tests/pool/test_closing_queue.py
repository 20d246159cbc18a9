"""One contract for asyncio.Queue of Python 3.13 and for what stands in for it on 3.12."""

from __future__ import annotations

import asyncio

import pytest

from tasks.closing_queue import ClosingQueue, QueueShutDown
from tests.pool.loops import on_a_loop, turns


@on_a_loop
async def test_a_closed_queue_takes_nothing_and_hands_out_what_it_has() -> None:
    queue: ClosingQueue[str] = ClosingQueue()
    queue.put_nowait("kept")
    queue.shutdown()
    with pytest.raises(QueueShutDown):
        await queue.put("late")
    with pytest.raises(QueueShutDown):
        queue.put_nowait("late")
    assert await queue.get() == "kept"
    with pytest.raises(QueueShutDown):
        await queue.get()
    with pytest.raises(QueueShutDown):
        queue.get_nowait()


@on_a_loop
async def test_an_immediate_shutdown_throws_away_what_is_queued() -> None:
    queue: ClosingQueue[int] = ClosingQueue()
    for number in range(3):
        queue.put_nowait(number)
    queue.shutdown(immediate=True)
    assert queue.empty()
    with pytest.raises(QueueShutDown):
        await queue.get()
    await queue.join()


@on_a_loop
async def test_join_after_an_immediate_shutdown_waits_for_what_was_taken() -> None:
    queue: ClosingQueue[int] = ClosingQueue()
    for number in range(3):
        queue.put_nowait(number)
    queue.get_nowait()
    queue.shutdown(immediate=True)
    joined = asyncio.ensure_future(queue.join())
    await turns()
    assert not joined.done()
    queue.task_done()
    await joined
    with pytest.raises(ValueError, match="too many times"):
        queue.task_done()


@pytest.mark.parametrize("immediate", [False, True])
@on_a_loop
async def test_closing_wakes_all_consumers_of_an_empty_queue(immediate: bool) -> None:
    queue: ClosingQueue[int] = ClosingQueue()
    consumers = [asyncio.ensure_future(queue.get()) for _ in range(3)]
    await turns()
    queue.shutdown(immediate=immediate)
    answers = await asyncio.gather(*consumers, return_exceptions=True)
    assert [type(answer) for answer in answers] == [QueueShutDown] * 3


@pytest.mark.parametrize("immediate", [False, True])
@on_a_loop
async def test_closing_wakes_all_producers_of_a_full_queue(immediate: bool) -> None:
    queue: ClosingQueue[int] = ClosingQueue(1)
    queue.put_nowait(0)
    producers = [asyncio.ensure_future(queue.put(number)) for number in (1, 2, 3)]
    await turns()
    queue.shutdown(immediate=immediate)
    answers = await asyncio.gather(*producers, return_exceptions=True)
    assert [type(answer) for answer in answers] == [QueueShutDown] * 3
    assert queue.qsize() == (0 if immediate else 1)


@on_a_loop
async def test_closing_twice_in_any_way_is_harmless() -> None:
    queue: ClosingQueue[int] = ClosingQueue()
    queue.put_nowait(1)
    queue.shutdown()
    queue.shutdown()
    queue.shutdown(immediate=True)
    queue.shutdown()
    assert queue.empty()
    await queue.join()


@on_a_loop
async def test_a_cancelled_consumer_gets_its_own_cancellation_also_at_the_close() -> None:
    queue: ClosingQueue[int] = ClosingQueue()
    cancelled, waiting = (asyncio.ensure_future(queue.get()) for _ in range(2))
    await turns()
    cancelled.cancel()
    queue.shutdown()
    await asyncio.wait({cancelled, waiting})
    assert cancelled.cancelled()
    assert isinstance(waiting.exception(), QueueShutDown)


@on_a_loop
async def test_an_item_for_a_consumer_cancelled_in_the_same_tick_goes_to_the_next() -> None:
    queue: ClosingQueue[str] = ClosingQueue()
    first, second = (asyncio.ensure_future(queue.get()) for _ in range(2))
    await turns()
    queue.put_nowait("item")
    first.cancel()
    assert await second == "item"
    assert first.cancelled()


@on_a_loop
async def test_room_for_a_producer_cancelled_in_the_same_tick_goes_to_the_next() -> None:
    queue: ClosingQueue[str] = ClosingQueue(1)
    queue.put_nowait("old")
    first, second = (asyncio.ensure_future(queue.put(name)) for name in ("first", "second"))
    await turns()
    assert queue.get_nowait() == "old"
    first.cancel()
    await second
    assert queue.get_nowait() == "second"
    assert first.cancelled()


@on_a_loop
async def test_the_last_item_goes_to_one_of_the_consumers_that_the_close_wakes() -> None:
    queue: ClosingQueue[str] = ClosingQueue()
    consumers = [asyncio.ensure_future(queue.get()) for _ in range(3)]
    await turns()
    queue.put_nowait("last")
    queue.shutdown()
    answers = await asyncio.gather(*consumers, return_exceptions=True)
    assert sorted(str(answer) for answer in answers) == ["", "", "last"]
