"""How many threads of one process may wait at once, whatever they wait for.

A request that waits keeps a thread of the web server, and others must be left to accept jobs.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

from django.conf import settings

# Half of the four threads that a web process has by default. Who finds no seat is answered at once.
WAITING_MAX_DEFAULT = 2
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 0.5


@contextmanager
def seat() -> Iterator[bool]:
    """False, at once, when too many wait already."""
    taken = seats().acquire(blocking=False)
    try:
        yield taken
    finally:
        if taken:
            seats().release()


def waiting_max() -> int:
    return int(getattr(settings, "TASKS_WAITING_REQUESTS", WAITING_MAX_DEFAULT))


@cache
def seats() -> threading.BoundedSemaphore:
    """Made when the first one waits: a worker imports this before it knows its settings."""
    return threading.BoundedSemaphore(waiting_max())


def poll_until(is_so: Callable[[], bool], within_s: float) -> None:
    """Ask until it is so, or until the time is over. Asks at least once."""
    ends_at = time.monotonic() + within_s
    for pause_s in pauses():
        left_s = ends_at - time.monotonic()
        if is_so() or left_s <= 0:
            return
        time.sleep(min(pause_s, left_s))


def pauses() -> Iterator[float]:
    """Seconds between two looks, without end; not in step with those of other waiters."""
    pause_s = FIRST_PAUSE_S
    while True:
        yield pause_s * random.uniform(0.75, 1.25)  # noqa: S311  (no secret)
        pause_s = min(pause_s * 1.5, LONGEST_PAUSE_S)
