"""``Prefer: wait=N``: hold an answer back until the job has finished, for a bounded time."""

from __future__ import annotations

import re
from collections.abc import Callable
from uuid import UUID

from tasks.models import Job
from tasks.seats import poll_until, seat
from tasks.states import TERMINAL

# Seconds. Below the 20 s that a stopping web server leaves to running requests.
WAIT_MAX_S = 15
# Seconds after which one who found no seat may try again: the waits of others end meanwhile.
NO_SEAT_RETRY_AFTER_S = 2

WAIT = re.compile(r"(?:^|[,;])\s*wait\s*=\s*\"?(\d{1,9})\"?\s*(?:$|[,;])", re.IGNORECASE)


def wished_wait_s(prefer: str | None) -> int:
    """The whole seconds of a ``Prefer`` header, at most ``WAIT_MAX_S``; 0 without a wish."""
    found = WAIT.search(prefer or "")
    return min(int(found[1]), WAIT_MAX_S) if found else 0


def wait_until_finished(job_id: UUID, within_s: float) -> bool:
    """As ``wait_until``."""
    return wait_until(lambda: is_finished(job_id), within_s)


def wait_until(is_so: Callable[[], bool], within_s: float) -> bool:
    """False, at once, when too many wait already; else True, once it is so or out of time."""
    with seat() as seated:
        if seated:
            poll_until(is_so, within_s)
        return seated


def is_finished(job_id: UUID) -> bool:
    """Also true for a job that is gone: waiting longer would not bring it back."""
    state = Job.objects.filter(pk=job_id).values_list("state", flat=True).first()
    return state is None or state in TERMINAL
