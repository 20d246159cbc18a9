"""The slots that coroutines share: first come, first served, and each is freed once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tasks.coroutines import Gate, Slot, Waiter

WITHIN_S = 20.0


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def take(gate: Gate, most: int = 1, patience_s: float = WITHIN_S) -> list[Slot]:
    with gate.line() as waiter:
        return waiter.take(most, patience_s)


def test_without_a_line_nobody_waits() -> None:
    gate = Gate(3)
    assert [len(take(gate)) for _ in range(3)] == [1, 1, 1]
    assert gate.in_use == 3
    assert take(gate, patience_s=0.0) == []


def test_one_takes_what_is_free_and_not_more_than_it_asked_for() -> None:
    gate = Gate(5)
    slots = take(gate, 3)
    assert len(slots) == 3
    assert len(take(gate, 50)) == 2
    slots[0].free()
    assert len(take(gate, 50)) == 1


def test_a_slot_is_freed_once() -> None:
    gate = Gate(2)
    [first, _] = take(gate, 2)
    first.free()
    first.free()
    assert gate.in_use == 1


def test_the_slot_of_a_coroutine_that_goes_on_stays_taken() -> None:
    gate = Gate(2)
    goes_on, never_began = take(gate, 2)
    goes_on.has_begun = True
    goes_on.leave()
    never_began.leave()
    assert gate.in_use == 1
    goes_on.free()
    assert gate.in_use == 0


def test_the_first_in_the_line_is_served_until_it_leaves(threads: ThreadPoolExecutor) -> None:
    gate = Gate(1)
    [held] = take(gate)
    with ExitStack() as first:
        waiter = first.enter_context(gate.line())
        begun = threading.Event()

        def second() -> list[Slot]:
            with gate.line() as later:
                begun.set()
                return later.take(1, WITHIN_S)

        other: Future[list[Slot]] = threads.submit(second)
        assert begun.wait(WITHIN_S)
        for _ in range(3):
            held.free()
            [held] = waiter.take(9, WITHIN_S)
        assert not other.done()
        held.free()
    assert len(other.result(WITHIN_S)) == 1


def test_who_has_waited_too_long_keeps_nobody_else_waiting(threads: ThreadPoolExecutor) -> None:
    gate = Gate(1)
    [held] = take(gate)

    def impatient(waiter: Waiter) -> list[Slot]:
        return waiter.take(1, 0.01)

    with gate.line() as waiter:
        assert threads.submit(impatient, waiter).result(WITHIN_S) == []
        other = threads.submit(take, gate)
    held.free()
    assert len(other.result(WITHIN_S)) == 1


def test_a_closed_gate_lets_nobody_in(threads: ThreadPoolExecutor) -> None:
    gate = Gate(1)
    take(gate)
    waiting = [threads.submit(take, gate) for _ in range(3)]
    gate.close()
    assert [one.result(WITHIN_S) for one in waiting] == [[], [], []]
    assert take(Gate(1))
