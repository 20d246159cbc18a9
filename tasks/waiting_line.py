"""The line before a pool: bounded, the most important first, and anybody in it can leave."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from tasks.closing_queue import ClosingQueue


class Ranked(Hashable, Protocol):
    """``priority``: a larger one is more important. Must not change while it waits."""

    @property
    def priority(self) -> int: ...


class Ranks[T: Ranked]:
    """Items by priority, and within one priority in the order of arrival.

    A heap could not give up an item from its middle; here that costs the same as taking the
    first: a look at each priority in use, of which there are few.
    """

    def __init__(self) -> None:
        self._ranks: dict[int, dict[T, None]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __contains__(self, item: T) -> bool:
        return item in self._ranks.get(item.priority, {})

    def add(self, item: T) -> None:
        self._ranks.setdefault(item.priority, {})[item] = None
        self._length += 1

    def first(self) -> T:
        """The oldest of the most important."""
        return next(iter(self._ranks[max(self._ranks)]))

    def last(self) -> T:
        """The youngest of the least important."""
        return next(reversed(self._ranks[min(self._ranks)]))

    def remove(self, item: T) -> None:
        rank = self._ranks[item.priority]
        del rank[item]
        self._length -= 1
        if not rank:
            del self._ranks[item.priority]

    def items(self) -> list[T]:
        """All, in no order. Safe to call from another thread than the one that changes them."""
        return [item for rank in list(self._ranks.values()) for item in list(rank)]


class WaitingLine[T: Ranked](ClosingQueue[T]):
    """``get`` gives the first; ``withdraw`` takes out any."""

    _queue: Ranks[T]
    _chosen: T | None = None

    # What asyncio.Queue lets a subclass decide: how the items are kept.

    def _init(self, maxsize: int) -> None:
        self._queue = Ranks()

    def _put(self, item: T) -> None:
        self._queue.add(item)

    def _get(self) -> T:
        item = self._queue.first() if self._chosen is None else self._chosen
        self._queue.remove(item)
        return item

    # What a line can do beyond a queue.

    def withdraw(self, item: T) -> bool:
        """Take this one out, wherever it stands. False: it is not in the line."""
        if item not in self._queue:
            return False
        self._chosen = item
        try:
            self.get_nowait()  # a get like any other: it lets in a producer who waits for room
        finally:
            self._chosen = None
        self.task_done()
        return True

    def last(self) -> T:
        """The least important, the youngest of these. The line must not be empty."""
        return self._queue.last()

    def items(self) -> list[T]:
        return self._queue.items()
