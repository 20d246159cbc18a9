"""What a drill is: something breaks, something is expected, and a schedule of the faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from devtools.drill.traffic import Order

if TYPE_CHECKING:
    from devtools.drill.scene import Scene

# How long the bodies take, in seconds, and how many of a hundred do.
BODIES = {(0.005, 0.04): 85, (0.1, 0.3): 12, (1.0, 2.0): 3}


def ordinary(random: Random, number: int) -> Order:
    """Every other job has its effect in a step with a key; the others just do it."""
    low, high = random.choices(list(BODIES), list(BODIES.values()))[0]
    task = "stepped" if number % 2 else "bare"
    return order(task, number, seconds=round(random.uniform(low, high), 3))


def order(
    task: str,
    number: int,
    *,
    expects: str = "succeeded",
    module: str = "devtools.drilled.tasks",
    after_s: float = 0.0,
    options: Mapping[str, object] | None = None,
    **payload: object,
) -> Order:
    """``after_s``: seconds after its acceptance until it may run."""
    key, payload = f"drill-{number}", {"number": number, **payload}
    return Order(key, f"{module}.{task}", payload, expects, after_s, options or {})


@dataclass(frozen=True)
class Drill:
    """``rehearse`` sends the traffic and breaks things meanwhile; all else is the scene's.

    ``lease_s``, ``drain_s``: of the rehearsed queue. ``per_s``: jobs per second.
    ``unwritten_s``: for how long an outcome may be known to its process alone.
    ``of_worker``: what one worker finds in its environment beside the others, by its name and
    the scene's own directory.
    """

    name: str
    breaks: str
    expects: str
    rehearse: Callable[[Scene], None]
    orders: Callable[[Random, int], Order] = ordinary
    workers: int = 3
    relays: int = 1
    web: bool = True
    broker_is_proxied: bool = False
    lease_s: float = 5.0
    drain_s: int = 5
    per_s: float = 50.0
    unwritten_s: float = 0.0
    environment: Mapping[str, str] = field(default_factory=dict)
    of_worker: Callable[[str, Path], dict[str, str]] | None = None
