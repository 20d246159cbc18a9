"""Jobs that wait, so that many of them travel in one message."""

from __future__ import annotations

from random import Random

from devtools.drill.drill import order
from devtools.drill.scene import Scene
from devtools.drill.traffic import Order

# The first jobs show how long one takes; until that is known each travels alone.
MEASURED = 30
# Neighbours that are jobs of the same task: only they share a message.
NEIGHBOURS = 50
PER_S = 400.0
BATCH = {"DRILL_BATCH": "50"}


def short(random: Random, number: int) -> Order:
    """Every other fifty have their effect in a step with a key; the others just do it."""
    task = "stepped" if number // NEIGHBOURS % 2 else "bare"
    return order(task, number, seconds=round(random.uniform(0.002, 0.02), 3))


def pile_up(scene: Scene) -> None:
    """Returns when all are accepted and the relay begins to send them."""
    with scene.traffic(scene.orders[:MEASURED]):
        pass
    scene.wait_until_all_ended()
    scene.stack.supervisor.stop(*(relay.name for relay in scene.relays))
    with scene.traffic(scene.orders[MEASURED:]):
        pass
    scene.start_relay()


def promise_batches(scene: Scene) -> None:
    shared = scene.count_jobs("batched")
    scene.promise("jobs share messages", shared > 0, f"{shared} did when they ran last")
