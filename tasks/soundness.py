"""What cannot be right in the numbers of a deployment, each said with both numbers and a cure.

Pure: neither a database nor a broker is asked. ``./dev topology --check`` and
``manage.py check --deploy`` report what it finds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tasks.topology import STOP_OVERHEAD_S, Downstream, Queue, Topology, connections_of

# Shorter leases than this end runs at each hiccup of the database: three renewals per lease, and
# a statement may take a second.
SHORTEST_LEASE_S = 3.0
# Jobs of one message: what a worker keeps in memory of each (``journal.py``) ends there.
MOST_BATCHED = 500
# A batch starts no further job after a second. A run stops by itself when two thirds of its lease
# have passed without a renewal, and its last job must still have most of that before it.
SHORTEST_LEASE_OF_BATCHES_S = 5.0
# Bytes of one message on Redis, its entry among the unacked and what the list costs; and of each
# job that travels in it beside the first.
MESSAGE_BYTES = 2_000
BATCHED_BYTES = 150
MESSAGES_PER_SLOT = 2
# Of a limit, by which rounding down may miss it before somebody should know.
UNUSED_SHARE = 0.1
# Parts of a deployment that a remedy names.
LARGEST_NAMED = 3
MB = 1_000_000


@dataclass(frozen=True)
class Fault:
    """``id`` is stable, so that a team can silence one it knows about."""

    id: str
    sentence: str
    hint: str


def faults(topology: Topology) -> list[Fault]:
    found = [fault for queue in topology.queues.values() for fault in of_queue(queue)]
    return [*found, *of_limits(topology), *of_broker(topology), *of_database(topology)]


def notes(topology: Topology) -> list[str]:
    """What is right and perhaps not meant: derived slots that leave much of a limit unused."""
    return [
        note
        for downstream in topology.downstreams
        if (note := unused(downstream, [topology.queue(q) for q in topology.calling(downstream)]))
    ]


def unused(downstream: Downstream, queues: list[Queue]) -> str | None:
    limit, slots = downstream.available, sum(queue.capacity for queue in queues)
    are_derived = all(queue.slots is None and queue.processes is None for queue in queues)
    if limit is None or not are_derived or limit - slots <= UNUSED_SHARE * limit:
        return None
    parts = " + ".join(f"{q.name} {q.replicas} x {q.concurrency}" for q in queues)
    note = (
        f"downstream {downstream.name} takes {limit} at once, and {slots} slots call it ({parts})."
    )
    if len(queues) > 1:
        return note
    queue = queues[0]
    even = [n for n in range(1, limit + 1) if limit % n == 0]
    replicas = min(even, key=lambda n: (abs(n - queue.replicas), n))
    return f"{note} replicas={replicas} would use all of it ({replicas} x {limit // replicas})."


def of_queue(queue: Queue) -> Iterator[Fault]:
    name = f"queue {queue.name}"
    if queue.stop_grace_s < queue.drain_s + STOP_OVERHEAD_S:
        yield Fault(
            "topology.E001",
            f"{name}: the stop grace of {queue.stop_grace_s:g} s ends before the drain of"
            f" {queue.drain_s} s and the {STOP_OVERHEAD_S:g} s that a worker needs to give back.",
            "Leave stop_grace out, or lower drain: whatever runs then is killed.",
        )
    if queue.drain_s > queue.time_limit:
        yield Fault(
            "topology.E002",
            f"{name}: the drain of {queue.drain_s} s is longer than any run, which ends at"
            f" time_limit={queue.time_limit} s.",
            "Leave drain out, or lower it to the time limit.",
        )
    if queue.lease < SHORTEST_LEASE_S:
        yield Fault(
            "topology.E003",
            f"{name}: a lease of {queue.lease:g} s is below {SHORTEST_LEASE_S:g} s, and the first"
            " hiccup of the database would end every run.",
            "Leave lease out: 15 s.",
        )
    if queue.max_waiting and (queue.max_waiting_per_tenant or 0) > queue.max_waiting:
        yield Fault(
            "topology.E004",
            f"{name}: max_waiting_per_tenant={queue.max_waiting_per_tenant} is more than"
            f" max_waiting={queue.max_waiting}, so one tenant can fill the queue.",
            "Lower max_waiting_per_tenant, or leave it out.",
        )
    if queue.surge < 1 and queue.replicas < 2:
        yield Fault(
            "topology.E005",
            f"{name}: with replicas={queue.replicas} and surge={queue.surge} every deploy leaves"
            " it without a worker.",
            "Set surge=1: the relay holds the downstream's limit meanwhile.",
        )
    if queue.replicas_cap < queue.replicas:
        yield Fault(
            "topology.E006",
            f"{name}: most_replicas={queue.most_replicas} is less than replicas={queue.replicas}.",
            "Raise most_replicas, or leave it out.",
        )
    if queue.limit is not None and queue.replicas_cap * queue.concurrency > queue.limit:
        yield Fault(
            "topology.E007",
            f"{name}: autoscaling up to {queue.replicas_cap} replicas of {queue.concurrency} makes"
            f" {queue.replicas_cap * queue.concurrency} slots; its downstream takes {queue.limit}.",
            f"Set most_replicas to {max(1, queue.limit // queue.concurrency)} or less.",
        )

    yield from of_batches(queue, name)


def of_batches(queue: Queue, name: str) -> Iterator[Fault]:
    if not 1 <= queue.batch <= MOST_BATCHED:
        yield Fault(
            "topology.E008",
            f"{name}: batch={queue.batch} is not between 1 and {MOST_BATCHED}.",
            "Set batch=1 to send each job alone, or batch=50 for short ones.",
        )
    if queue.batch > 1 and queue.lease < SHORTEST_LEASE_OF_BATCHES_S:
        yield Fault(
            "topology.E009",
            f"{name}: with batch={queue.batch} a lease of {queue.lease:g} s is below"
            f" {SHORTEST_LEASE_OF_BATCHES_S:g} s, and jobs that wait for their turn would lose it.",
            "Leave lease out: 15 s; or set batch=1.",
        )
    if queue.slots is not None and queue.batch > max(1, queue.slots):
        yield Fault(
            "topology.E011",
            f"{name}: batch={queue.batch} is more than slots={queue.slots}, which is how many"
            " coroutines of one batch run at once.",
            f"Set batch to {queue.slots} or less.",
        )


def of_limits(topology: Topology) -> Iterator[Fault]:
    for names in {tuple(topology.sharing(queue)) for queue in topology.queues.values()}:
        queues = [topology.queue(name) for name in names]
        limit, slots = queues[0].limit, sum(queue.capacity for queue in queues)
        if limit is None or slots <= limit:
            continue
        parts = " + ".join(f"{q.name} {q.replicas} x {q.concurrency}" for q in queues)
        downstream = queues[0].downstream.name if queues[0].downstream else ""
        yield Fault(
            "topology.E010",
            f"downstream {downstream}: {slots} static slots ({parts}) are above its limit"
            f" of {limit}.",
            "Give these queues fewer processes or replicas; slots above the limit only wait.",
        )


def of_broker(topology: Topology) -> Iterator[Fault]:
    visibility_s, longest_lease_s = topology.visibility_timeout_s, max(topology.leases_s)
    if visibility_s <= topology.longest_s:
        yield Fault(
            "topology.E020",
            f"broker: the visibility timeout of {visibility_s} s is not above the longest time"
            f" limit and stop grace, {topology.longest_s:g} s.",
            "Leave visibility_timeout out: the broker would start again what still runs.",
        )
    if visibility_s <= longest_lease_s:
        yield Fault(
            "topology.E021",
            f"broker: the visibility timeout of {visibility_s} s is not above the lease of"
            f" {longest_lease_s:g} s.",
            "Leave visibility_timeout out: the ledger has to find a dead worker first.",
        )
    slots = sum(queue.replicas_cap * queue.concurrency for queue in topology.queues.values())
    needed_mb = MESSAGES_PER_SLOT * sum(map(bytes_of_messages, topology.queues.values())) / MB
    if needed_mb * 2 > topology.broker.memory_mb:
        yield Fault(
            "topology.E022",
            f"broker: {slots} slots need {needed_mb:.0f} MB for their messages, more than half of"
            f" memory_mb={topology.broker.memory_mb}.",
            f"Raise it: Broker(memory_mb={int(needed_mb * 2) + 1}) or more.",
        )
    for queue in topology.queues.values():
        if queue.retention < topology.callers_repeat_for:
            yield Fault(
                "topology.E023",
                f"queue {queue.name}: keys are kept for {queue.retention} after the job, and"
                f" callers may repeat a request for {topology.callers_repeat_for}.",
                "Raise retention: a repeat after it would be a second job.",
            )


def bytes_of_messages(queue: Queue) -> int:
    """One for each slot."""
    of_one = MESSAGE_BYTES + BATCHED_BYTES * (queue.batch - 1)
    return queue.replicas_cap * queue.concurrency * of_one


def of_database(topology: Topology) -> Iterator[Fault]:
    database = topology.database
    free = database.max_connections - database.reserved
    if topology.connections > free:
        most = sorted(topology.parts, key=connections_of, reverse=True)[:LARGEST_NAMED]
        takers = ", ".join(f"{part.name} {connections_of(part)}" for part in most)
        yield Fault(
            "topology.E030",
            f"database: a deploy needs {topology.connections} connections at once; of"
            f" max_connections={database.max_connections} {free} are free"
            f" ({database.reserved} reserved).",
            f"Raise it: Database(max_connections={topology.connections + database.reserved});"
            f" or lower replicas or processes where most are taken ({takers}); or put PgBouncer in"
            " between (docs/production-checklist.md).",
        )
    relay = topology.services.get("relay")
    if relay is not None and relay.replicas < 1:
        yield Fault(
            "topology.E031",
            f"service relay: replicas={relay.replicas}, and without a relay nothing is dispatched.",
            "Set replicas to 2, so that one may stop.",
        )


def listed(found: Iterable[Fault]) -> str:
    return "\n".join(f"{fault.id}  {fault.sentence}\n{'':15}{fault.hint}" for fault in found)
