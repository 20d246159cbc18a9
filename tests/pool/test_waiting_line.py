"""Who is served first, and who can leave the line."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tasks.waiting_line import WaitingLine
from tests.pool.loops import on_a_loop, turns


@dataclass(frozen=True)
class Guest:
    name: int
    priority: int = 0


@given(st.lists(st.tuples(st.integers(-2, 2), st.booleans())))
def test_the_most_important_come_first_in_order_of_arrival(
    arrivals: list[tuple[int, bool]],
) -> None:
    line: WaitingLine[Guest] = WaitingLine()
    guests = [Guest(number, priority) for number, (priority, _) in enumerate(arrivals)]
    leaving = [guest for guest, (_, leaves) in zip(guests, arrivals, strict=True) if leaves]
    for guest in guests:
        line.put_nowait(guest)
    assert all(line.withdraw(guest) for guest in leaving)
    staying = sorted(set(guests) - set(leaving), key=lambda guest: (-guest.priority, guest.name))
    assert line.qsize() == len(staying) == len(line.items())
    assert not staying or line.last() == staying[-1]
    assert [line.get_nowait() for _ in staying] == staying
    assert line.empty()


@on_a_loop
async def test_who_left_or_was_served_cannot_leave() -> None:
    line: WaitingLine[Guest] = WaitingLine()
    left, served, stranger = Guest(1), Guest(2), Guest(3)
    line.put_nowait(left)
    line.put_nowait(served)
    assert line.withdraw(left)
    assert line.get_nowait() == served
    assert not any(line.withdraw(guest) for guest in (left, served, stranger))
    line.task_done()
    await line.join()


@on_a_loop
async def test_a_place_that_somebody_leaves_goes_to_the_producer_who_waits_for_it() -> None:
    line: WaitingLine[Guest] = WaitingLine(2)
    first, second, third = Guest(1), Guest(2), Guest(3)
    line.put_nowait(first)
    line.put_nowait(second)
    producer = asyncio.ensure_future(line.put(third))
    await turns()
    assert not producer.done()
    line.withdraw(second)
    await producer
    assert line.items() == [first, third]


@on_a_loop
async def test_a_consumer_woken_for_one_who_has_left_waits_on() -> None:
    line: WaitingLine[Guest] = WaitingLine()
    consumer = asyncio.ensure_future(line.get())
    await turns()
    line.put_nowait(Guest(1))
    line.withdraw(Guest(1))
    await turns()
    assert not consumer.done()
    line.put_nowait(Guest(2))
    assert await consumer == Guest(2)
