"""How many jobs per second a queue takes: what each relay has seen, and what all have together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp

from tasks.sql import execute

# Seconds over which a relay averages, to size what lies on the broker.
PACE_OVER_S = 1.0
# Seconds over which all of them do, for admission and estimates.
SHARED_OVER_S = 5.0
# The first second of work after none fills the window as well: half of it is a fair guess.
FIRST_OVER_S = 2.0


@dataclass
class Pace:
    """How many jobs per second a queue has taken from this relay lately."""

    per_s: float = 0.0
    at: float = 0.0
    untold: int = 0

    def took(self, jobs: int, now: float) -> None:
        """``now``: any clock, in seconds."""
        self.per_s = self.per_s * exp((self.at - now) / PACE_OVER_S) + jobs / PACE_OVER_S
        self.at = now
        self.untold += jobs


def tell(paces: Mapping[str, Pace]) -> None:
    """Add what was dispatched since the last time to what the other relays have."""
    news = {queue: pace for queue, pace in paces.items() if pace.untold}
    if not news:
        return
    execute(
        "INSERT INTO tasks_queuestate AS s (queue, per_s)"
        " SELECT queue, jobs / %(first_s)s::float8"
        " FROM unnest(%(queues)s::text[], %(jobs)s::int[]) AS given(queue, jobs) ORDER BY queue"
        " ON CONFLICT (queue) DO UPDATE SET per_s_at = clock_timestamp(), per_s ="
        # What it took while it wanted for work says nothing about what it can take.
        " CASE WHEN s.idle_at > s.per_s_at THEN greatest(s.per_s, excluded.per_s)"
        " ELSE excluded.per_s * %(first_s)s / %(over_s)s + s.per_s * exp(greatest(-100,"
        " extract(epoch FROM s.per_s_at - clock_timestamp())::float8 / %(over_s)s)) END",
        {
            "queues": list(news),
            "jobs": [pace.untold for pace in news.values()],
            "first_s": FIRST_OVER_S,
            "over_s": SHARED_OVER_S,
        },
    )
    for pace in news.values():
        pace.untold = 0
