"""One job of an ordering key at a time, in the order of acceptance.

A job that finds an unfinished one before it is held (``Hold.ORDER``) and so costs the dispatcher
nothing. When the one before has ended, the relay lets the next one go: at once for keys whose
job has ended lately, and for all others in a sweep that goes round.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from tasks import ledger
from tasks.ledger import NO_KEY, Dispatched, Key

# Seconds for which a key counts as freed lately: longer than a relay is away from its loop, and
# than an ending transaction takes to commit.
LATELY_S = 2.0
# Keys of one sweep, once a second.
KEYS_AT_ONCE = 1000


class Orders:
    """What one relay knows of ordering keys. Without any it asks nothing.

    A key in which nobody waits costs nothing either, however many there are.
    """

    def __init__(self) -> None:
        self.are_there = True
        self.freed_at = 0.0
        self.swept: Key = NO_KEY

    def sent(self, jobs: Iterable[Dispatched]) -> None:
        self.are_there = self.are_there or any(job.is_ordered for job in jobs)

    def free(self) -> int:
        """Keys whose job has ended since the last look."""
        if not self.are_there:
            return 0
        now = time.monotonic()
        away_s = min(now - self.freed_at, 60.0) if self.freed_at else 0.0
        self.freed_at = now
        return ledger.free_keys(away_s + LATELY_S)

    def sweep(self) -> int:
        """Once a second: what ended unseen, or was enqueued at the moment it ended."""
        self.are_there = ledger.has_ordered_jobs()
        if not self.are_there:
            return 0
        freed, self.swept = ledger.sweep_keys(self.swept, KEYS_AT_ONCE)
        return freed
