"""What may go to the broker now: due jobs, within the window and the limit of their queue.

The decision is made under one lock per downstream (per queue where it has none) and committed
before anything is published, so any number of relays may run and none can exceed a limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from django.db import transaction

from tasks import ledger
from tasks.ledger import Dispatched
from tasks.topology import Queue, Topology

# Messages of one statement: what is published before the relay looks around again.
BATCH = 200
# A worker's next job should be on the broker when it ends one; more would only queue there,
# where nothing can be ordered or cancelled.
MESSAGES_PER_SLOT = 2


@dataclass(frozen=True)
class Slots:
    """What the live workers of a queue report."""

    capacity: int = 0
    free: int = 0


@dataclass(frozen=True)
class Load:
    """How many jobs of a queue lie on the broker and how many run."""

    dispatched: int = 0
    running: int = 0


def room(queue: Queue, slots: Slots, load: Load, in_flight_of_limit: int) -> int:
    """How many more jobs may be dispatched: the window of the queue and its downstream's limit."""
    window = MESSAGES_PER_SLOT * slots.capacity - load.dispatched
    limit = queue.limit - in_flight_of_limit if queue.limit is not None else window
    return max(0, min(window, limit, BATCH))


def dispatch(
    topology: Topology, queue: Queue, slots: Slots, *, at_most: int = BATCH
) -> list[Dispatched]:
    """Mark as many due jobs of a queue as may go now."""
    if not slots.capacity:
        return []  # nobody takes from the broker: whatever waits, waits in the ledger
    with transaction.atomic():
        ledger.lock_limit(queue.lock_name)
        loads = {
            name: Load(*load) for name, load in ledger.in_flight(topology.sharing(queue)).items()
        }
        count = room(queue, slots, loads.get(queue.name, Load()), in_flight(loads))
        return ledger.dispatch(queue.name, min(count, at_most)) if count else []


def in_flight(loads: Mapping[str, Load]) -> int:
    return sum(load.dispatched + load.running for load in loads.values())


def dispatch_again(queue: Queue, slots: Slots) -> list[Dispatched]:
    """Jobs whose message must be lost: long on the broker while a worker has a free slot."""
    if not slots.free:
        return []
    return ledger.dispatch_again(queue.name, 2 * queue.lease, BATCH)
