"""``asyncio.Queue`` with ``shutdown()``: the standard library's from Python 3.13, and on 3.12
this one, which keeps the same contract. Delete the second half with Python 3.12.

``QueueShutDown`` is about the life of the queue and never about who waits at it: a caller who is
cancelled while waiting gets his CancelledError, also while the queue closes.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING or sys.version_info >= (3, 13):
    from asyncio import Queue as ClosingQueue
    from asyncio import QueueShutDown
else:

    class QueueShutDown(Exception):
        """The queue takes nothing more, or has nothing more to give."""

    class ClosingQueue[T](asyncio.Queue[T]):
        """Closed, it refuses what is put and hands out what it has; then it refuses that too."""

        _is_shutdown = False

        def shutdown(self, immediate: bool = False) -> None:
            """Close, and wake all who wait. ``immediate``: throw away what is in it.

            What was taken already is still to be marked done; ``join`` waits for that.
            """
            self._is_shutdown = True
            while immediate and not self.empty():
                self._get()
                self.task_done()
            for waiters in (self._getters, self._putters):
                while waiters:
                    self._wakeup_next(waiters)

        async def put(self, item: T) -> None:
            while self.full() and not self._is_shutdown:
                await self._turn(self._putters, lambda: not self.full())
            self.put_nowait(item)

        def put_nowait(self, item: T) -> None:
            if self._is_shutdown:
                raise QueueShutDown
            super().put_nowait(item)

        async def get(self) -> T:
            while self.empty() and not self._is_shutdown:
                await self._turn(self._getters, lambda: not self.empty())
            return self.get_nowait()

        def get_nowait(self) -> T:
            if self.empty() and self._is_shutdown:
                raise QueueShutDown
            return super().get_nowait()

        async def _turn(
            self, waiters: deque[asyncio.Future[None]], is_possible: Callable[[], bool]
        ) -> None:
            """Wait to be woken. Who is cancelled just then passes the call on to the next."""
            waiter = asyncio.get_running_loop().create_future()
            waiters.append(waiter)
            try:
                await waiter
            except BaseException:
                waiter.cancel()
                with suppress(ValueError):  # who was woken is no longer in it
                    waiters.remove(waiter)
                if is_possible() and not waiter.cancelled():
                    self._wakeup_next(waiters)
                raise


__all__ = ["ClosingQueue", "QueueShutDown"]
