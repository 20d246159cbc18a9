"""Readings of the database that never take longer than their deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from tasks.connections import bounded


class BoundedReader:
    """Asks in a thread of its own, one question at a time.

    A database that is mute, not down, says neither yes nor no, and the driver waits for ever.
    Probes and scrapes come again and again: each would cost the web server a thread. Here a
    reading that hangs costs one, and those after it give up at their deadline.
    """

    def __init__(self) -> None:
        self._asking = threading.Lock()

    def read[T](self, question: Callable[[], T], *, within_s: float) -> T:
        """The answer on a fresh connection; raises TimeoutError, or what the question raised."""
        deadline = time.monotonic() + within_s
        if not self._asking.acquire(timeout=within_s):
            raise TimeoutError("an earlier reading still waits for the database")
        answer: Future[T] = Future()
        threading.Thread(target=self._ask, args=(question, answer), daemon=True).start()
        return answer.result(max(0.0, deadline - time.monotonic()))

    def _ask[T](self, question: Callable[[], T], answer: Future[T]) -> None:
        try:
            with bounded():
                answer.set_result(question())
        except BaseException as exc:
            answer.set_exception(exc)
        finally:
            self._asking.release()
