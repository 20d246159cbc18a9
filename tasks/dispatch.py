"""What may go to the broker now: due jobs, within the window and the limit of their queue.

The decision is made under one lock per downstream (per queue where it has none) and committed
before anything is published, so any number of relays may run and none can exceed a limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from django.db import transaction

from tasks import ledger, limits
from tasks.ledger import Dispatched
from tasks.topology import Queue, Topology
from tasks.turns import Rounds

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


# Part of the window that must have run empty before it is filled again: refilling a nearly full
# one costs a transaction for a job or two. What is left keeps every slot busy meanwhile.
REFILL_BELOW = 0.5
# Seconds of work that may lie on the broker where jobs are so short that two per slot run dry
# between two looks of the relay.
WINDOW_S = 0.25


@dataclass(frozen=True)
class Load:
    """How many jobs of a queue lie on the broker and how many run."""

    dispatched: int = 0
    running: int = 0


def room(
    queue: Queue,
    slots: Slots,
    load: Load,
    in_flight_of_limit: int,
    per_s: float = 0.0,
    per_message: int = 1,
) -> int:
    """How many more jobs may be dispatched: the window of the queue and its downstream's limit.

    ``per_s``: the pace of the queue, jobs per second. ``per_message``: how many share a message.
    """
    # The jobs of a message take one slot, but for coroutines: each of those takes one.
    of_slot = MESSAGES_PER_SLOT * (per_message if queue.slots is None else 1)
    window = max(of_slot * slots.capacity, int(per_s * WINDOW_S))
    if queue.limit is not None:
        return max(0, min(window - load.dispatched, queue.limit - in_flight_of_limit, BATCH))
    if load.dispatched > window * REFILL_BELOW:
        return 0
    found = min(window - load.dispatched, BATCH)
    return found - found % per_message if found > per_message else found


def dispatch(
    topology: Topology,
    queue: Queue,
    slots: Slots,
    *,
    lane: str = "",
    paused_tasks: Sequence[str] = (),
    rounds: Rounds | None = None,
    share: float = 1.0,
    per_s: float = 0.0,
    per_message: int = 1,
    at_most: int = BATCH,
) -> list[Dispatched]:
    """Mark as many due jobs of a queue, or of one lane of it, as may go now.

    ``share``: the part of the room that this lane may take. ``rounds``: what the tenants have had
    from this relay.
    """
    if not slots.capacity:
        return []  # nobody takes from the broker: whatever waits, waits in the ledger
    sharing = topology.sharing(queue)
    if not room_beside(queue, slots, ledger.in_flight(sharing), per_s, per_message):
        return []  # a look without the lock: most find no room
    with transaction.atomic():
        # A mark that a crash undoes is made again, with the same number: of its two messages
        # one is claimed, none before that.
        ledger.lock_limit(queue.lock_name, waits_for_disk=False)
        loads = ledger.in_flight(sharing)
        count = ceil(share * room_beside(queue, slots, loads, per_s, per_message))
        count = min(count, at_most, room_of_rate(queue, lane, loads))
        count = limits.grant(queue, lane, count)
        if not count:
            return []
        jobs = ledger.dispatch(
            queue.name,
            count,
            lane=lane,
            most=queue.max_running_per_tenant,
            paused_tasks=paused_tasks,
            rounds=rounds,
        )
        limits.spend(queue, lane, jobs)
        return jobs


def room_beside(
    queue: Queue,
    slots: Slots,
    loads: Mapping[str, tuple[int, int]],
    per_s: float,
    per_message: int = 1,
) -> int:
    """``room`` beside what is in flight of the queue, and of those it shares a downstream with."""
    load = Load(*loads.get(queue.name, (0, 0)))
    return room(queue, slots, load, in_flight(loads), per_s, per_message)


def in_flight(loads: Mapping[str, tuple[int, int]]) -> int:
    return sum(dispatched + running for dispatched, running in loads.values())


def room_of_rate(queue: Queue, lane: str, loads: Mapping[str, tuple[int, int]]) -> int:
    """What has a rate lies on the broker one burst at a time: workers that were busy, or away,
    would start all of it at once."""
    rooms = [BATCH]
    if queue.downstream is not None and (rate := limits.rate_of(queue.downstream.rate)):
        rooms.append(int(rate.burst) - sum(dispatched for dispatched, _ in loads.values()))
    if lane and (rate := limits.rate_of_task(lane)):
        rooms.append(int(rate.burst) - ledger.dispatched_of_lane(queue.name, lane))
    return max(0, min(rooms))


def dispatch_again(queue: Queue, slots: Slots) -> list[Dispatched]:
    """Jobs whose message must be lost: long on the broker while a worker has a free slot."""
    if not slots.free:
        return []
    return ledger.dispatch_again(queue.name, 2 * queue.lease, BATCH)
