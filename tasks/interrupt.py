"""Reaches a body that waits: what it registered is called when its run must stop.

A body inside a blocking call cannot look whether it should go on. One thread per process looks
for all that have registered something, and sleeps while nobody has.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

import structlog

from tasks.errors import Interrupted, TasksError

log = structlog.get_logger(__name__)

LOOK_EVERY_S = 0.2
# Seconds for which a block waits until a callback that has begun is done: what it closes is not
# to be closed later, when it may be something else.
CALLBACK_ENDS_WITHIN_S = 5.0


class Watch:
    """One registered callback. As a context manager it ends with the block.

    What the interrupted call raises leaves the block as the Interrupted that was its cause.
    """

    def __init__(
        self, ask: Callable[[], Interrupted | None], callback: Callable[[], object]
    ) -> None:
        """``ask``: why to stop, None while there is no reason. Called again and again."""
        self.ask = ask
        self.callback = callback
        self.told: Interrupted | None = None
        self.has_ended = False
        self._calling: threading.Thread | None = None

    def tell(self, reason: Interrupted) -> None:
        """In a thread of its own: one that hangs keeps no other from being told."""
        self.told = reason
        self._calling = threading.Thread(target=self._call, name="interrupt", daemon=True)
        self._calling.start()

    def _call(self) -> None:
        try:
            self.callback()
        except Exception:  # the body goes on to its end, or to its time limit
            log.exception("interrupt_callback_failed")

    def end(self) -> None:
        """From now on it is not called."""
        WATCHER.forget(self)
        self.has_ended = True
        if self._calling is not None and self._calling is not threading.current_thread():
            self._calling.join(CALLBACK_ENDS_WITHIN_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()
        is_ours = isinstance(error, Exception | asyncio.CancelledError)
        if self.told is not None and is_ours and not isinstance(error, TasksError):
            raise self.told from error


class Watcher:
    """The thread that looks. A forked child has none of its parent's, and starts its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches: set[Watch] = set()
        self._thread: threading.Thread | None = None
        self._wanted = threading.Event()

    def add(self, watch: Watch) -> Watch:
        with self._lock:
            self._watches.add(watch)
            self._wanted.set()
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="watcher", daemon=True)
                self._thread.start()
        return watch

    def forget(self, watch: Watch) -> None:
        with self._lock:
            self._watches.discard(watch)
            if not self._watches:
                self._wanted.clear()

    def _work(self) -> None:
        pause = threading.Event()
        while True:
            self._wanted.wait()
            self.look()
            pause.wait(LOOK_EVERY_S)

    def look(self) -> None:
        with self._lock:
            watches = list(self._watches)
        for watch in watches:
            reason = watch.ask()
            if reason is not None:
                self._tell(watch, reason)

    def _tell(self, watch: Watch, reason: Interrupted) -> None:
        """Unless its block has ended. With the lock: ``forget`` comes before it, or after."""
        with self._lock:
            if watch in self._watches:
                self._watches.discard(watch)
                watch.tell(reason)


WATCHER = Watcher()
