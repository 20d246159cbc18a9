"""Tenants that get another share of a queue than the others, or fewer jobs at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tasks import pauses
from tasks.ledger import fetch
from tasks.topology import Queue
from tasks.turns import Shares

# Rows that the relay reads each second. Weights are for the few who differ.
TENANTS_MAX = 1000


@dataclass(frozen=True)
class Special:
    """The rows of the table, for any queue."""

    weights: Mapping[str, int] = field(default_factory=dict)
    most_of: Mapping[str, int] = field(default_factory=dict)

    def of(self, queue: Queue) -> Shares:
        return Shares(
            self.weights,
            self.most_of,
            most=queue.max_running_per_tenant,
            paused_tenants=pauses.paused_tenants(),
            paused_tasks=pauses.paused_tasks(),
        )


def special() -> Special:
    rows = fetch(
        "SELECT name, weight, max_running FROM tasks_tenant ORDER BY name LIMIT %s", [TENANTS_MAX]
    )
    return Special(
        {name: weight for name, weight, _ in rows},
        {name: most for name, _, most in rows if most is not None},
    )
