"""``Prefer: wait=N``: hold an answer back until the job has finished, for a bounded time."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from uuid import UUID

from django.conf import settings

from tasks.models import Job
from tasks.states import TERMINAL

# Seconds. Below the 20 s that a stopping web server leaves to running requests.
WAIT_MAX_S = 15
# Requests of one process that may wait at once: half of its four threads by default, so that
# there are always some left to accept jobs. Those beyond it are answered at once.
WAITING_MAX = getattr(settings, "TASKS_WAITING_REQUESTS", 2)
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 0.5

WAIT = re.compile(r"(?:^|[,;])\s*wait\s*=\s*\"?(\d{1,9})\"?\s*(?:$|[,;])", re.IGNORECASE)
SEATS = threading.BoundedSemaphore(WAITING_MAX)


def wished_wait_s(prefer: str | None) -> int:
    """The whole seconds of a ``Prefer`` header, at most ``WAIT_MAX_S``; 0 without a wish."""
    found = WAIT.search(prefer or "")
    return min(int(found[1]), WAIT_MAX_S) if found else 0


def wait_until_finished(job_id: UUID, within_s: float) -> bool:
    """As ``wait_until``."""
    return wait_until(lambda: is_finished(job_id), within_s)


def wait_until(is_so: Callable[[], bool], within_s: float) -> bool:
    """False, at once, when too many wait already; else True, once it is so or out of time."""
    if not SEATS.acquire(blocking=False):
        return False
    try:
        ends_at = time.monotonic() + within_s
        pause_s = FIRST_PAUSE_S
        while not is_so() and (left_s := ends_at - time.monotonic()) > 0:
            time.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 1.5, LONGEST_PAUSE_S)
        return True
    finally:
        SEATS.release()


def is_finished(job_id: UUID) -> bool:
    """Also true for a job that is gone: waiting longer would not bring it back."""
    state = Job.objects.filter(pk=job_id).values_list("state", flat=True).first()
    return state is None or state in TERMINAL
