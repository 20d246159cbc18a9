"""The words in which a deployment states its numbers: downstreams, queues, and what follows.

A project writes the numbers once (``config/topology.py``) and hands them over in the setting
``TASKS_TOPOLOGY``. Nothing here imports Django, so tools can read them without a database.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Literal

# A lease is how long a dead worker's job stays untouched. Renewed three times per lease.
LEASE_S = 15.0
# Seconds a stopping worker lets runs go on where a job can be given back and resumed.
DRAIN_S = 20
# Beyond the drain a worker needs this long to give back, close and exit.
STOP_OVERHEAD_S = 10.0
# Beyond the longest run and its stop: a broker that redelivers a minute late costs nothing.
VISIBILITY_MARGIN_S = 60
# What a queue that calls nothing limited gets.
DEFAULT_PROCESSES = 2
# MB that a slot costs beside its process: a connection, a stack and the values of one call.
SLOT_MB = 2
# Connections of a worker beside those of its runs: the beat in the parent, and whatever else
# its main thread asks (revokes, adopted messages).
WORKER_CONNECTIONS = 2
# Shared by the slots of a worker, which would otherwise open a hundred. A statement takes a
# millisecond or two, most of it Python's, and one thread of Python computes at a time. One more
# is that of coroutines which use the database themselves.
SLOT_CONNECTIONS = 4


def days(number: float) -> timedelta:
    return timedelta(days=number)


RATE = re.compile(r"^([1-9]\d*)/(s|m|h)$")


@dataclass(frozen=True)
class Breaker:
    """When a downstream counts as broken, and how it is tried again.

    It opens when of at least ``least_runs`` runs in ``over_s`` seconds ``failure_share`` or more
    raised (``Fail`` does not count: there the downstream is not to blame). After ``open_s``
    seconds one job probes; each probe that fails doubles the pause, up to ``longest_open_s``.
    """

    failure_share: float = 0.5
    least_runs: int = 20
    over_s: float = 30.0
    open_s: float = 10.0
    longest_open_s: float = 60.0


@dataclass(frozen=True)
class Downstream:
    """Something jobs call that has a limit.

    ``max_concurrency``: calls at once, over all replicas; None is no limit.
    ``reserve``: how many of these are kept for callers that are no jobs.
    ``rate``: calls per second, minute or hour, as ``"50/s"``.
    ``breaker``: None never stops calling.
    ``remembers_keys``: how long it answers a repeated idempotency key with the first result;
    retries that go on for longer would do the work twice. None is for ever.
    """

    name: str
    max_concurrency: int | None = None
    rate: str | None = None
    breaker: Breaker | None = Breaker()
    reserve: int = 0
    remembers_keys: timedelta | None = None

    def __post_init__(self) -> None:
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise ValueError(f"downstream {self.name}: max_concurrency must be at least 1")
        if self.available is not None and self.available < 1:
            raise ValueError(
                f"downstream {self.name}: a reserve of {self.reserve} leaves nothing of"
                f" max_concurrency={self.max_concurrency}; lower the reserve"
            )
        if self.rate is not None and not RATE.match(self.rate):
            raise ValueError(f"downstream {self.name}: rate {self.rate!r} is not like '50/s'")

    @property
    def limit_name(self) -> str:
        """Of its lock, and of the row where the relays keep what they agree on."""
        return f"downstream:{self.name}"

    @property
    def available(self) -> int | None:
        """Calls that jobs may make at once."""
        return None if self.max_concurrency is None else self.max_concurrency - self.reserve


@dataclass(frozen=True)
class Queue:
    """Jobs that share a downstream, and how many of them run at once.

    ``replicas`` workers, ``surge`` more while a deploy replaces them. ``processes`` of each
    follow from the downstream's limit unless given. ``slots``, instead of processes: threads of
    one process, for jobs that mostly wait; ``async def`` tasks share its event loop.
    ``most_replicas``: up to which autoscaling may go.

    ``time_limit``: seconds, the hard limit of a run. ``drain``: seconds a stopping worker waits;
    20 where its jobs are ``resumable``, else the time limit. ``stop_grace``: seconds from SIGTERM
    to SIGKILL; follows from the drain. ``lease``: seconds. ``retention``: how long a finished
    job, and with it its key, is kept; a week, because a bug shipped on Friday must survive the
    weekend.
    ``give_up_after``: a job that is given back, snoozes or waits for a worker that can run it, and
    for that long has no attempt of its own, fails (``gave_up``).

    Admission: ``max_waiting`` due jobs, ``max_waiting_per_tenant`` of one tenant, and no more than
    are expected to start within ``max_wait_s`` seconds; None is no bound. What is beyond is
    refused, or (``policy="shed"``) displaces a less important job of the same tenant.
    ``max_running_per_tenant``: jobs of one tenant on the broker and in workers at once.

    ``batch``: up to so many short jobs of one task travel in one message; 1 sends each alone.

    ``process_mb``: memory that one process may use; a fresh one takes 90 MB. ``acceptable_wait_s``:
    a job that has waited longer is a reason for one more replica; five times longer, for an alert.
    """

    name: str
    downstream: Downstream | None = None
    replicas: int = 1
    processes: int | None = None
    slots: int | None = None
    time_limit: int = 300
    drain: int | None = None
    lease: float = LEASE_S
    retention: timedelta = days(7)
    give_up_after: timedelta = days(7)
    max_waiting: int | None = None
    max_waiting_per_tenant: int | None = None
    max_wait_s: float | None = None
    policy: Literal["reject", "shed"] = "reject"
    max_running_per_tenant: int | None = None
    batch: int = 1
    surge: int = 1
    most_replicas: int | None = None
    resumable: bool = True
    stop_grace: int | None = None
    process_mb: int = 200
    acceptable_wait_s: int = 60

    def __post_init__(self) -> None:
        if self.slots is not None and self.processes is not None:
            raise ValueError(
                f"queue {self.name}: processes={self.processes} and slots={self.slots} are two"
                " kinds of worker; keep processes for work that computes, slots for work that waits"
            )
        if self.replicas < 1:
            raise ValueError(
                f"queue {self.name}: replicas={self.replicas}; with less than 1 nothing runs."
                " To stop a queue for a while, pause it"
            )
        if self.concurrency < 1:
            raise ValueError(
                f"queue {self.name}: {self.replicas} replicas share a limit of {self.limit}; "
                "use fewer replicas or a higher max_concurrency"
            )

    @property
    def concurrency(self) -> int:
        """Jobs that one replica runs at once: its processes, or its slots."""
        if self.slots is not None:
            return self.slots
        if self.processes is not None:
            return self.processes
        return DEFAULT_PROCESSES if self.limit is None else self.limit // self.replicas

    @property
    def capacity(self) -> int:
        """Jobs that all replicas run at once."""
        return self.replicas * self.concurrency

    @property
    def pool(self) -> Literal["prefork", "threads"]:
        return "prefork" if self.slots is None else "threads"

    @property
    def is_bounded(self) -> bool:
        """Whether anything limits how many jobs may wait."""
        bounds = (self.max_waiting, self.max_waiting_per_tenant, self.max_wait_s)
        return any(bound is not None for bound in bounds)

    @property
    def lock_name(self) -> str:
        """Who dispatches for this limit takes this lock: the downstream's, else the queue's own."""
        return self.downstream.limit_name if self.downstream else f"queue:{self.name}"

    @property
    def limit(self) -> int | None:
        return self.downstream.available if self.downstream else None

    @property
    def drain_s(self) -> int:
        if self.drain is not None:
            return self.drain
        return min(DRAIN_S, self.time_limit) if self.resumable else self.time_limit

    @property
    def stop_grace_s(self) -> float:
        return self.stop_grace if self.stop_grace is not None else self.drain_s + STOP_OVERHEAD_S

    @property
    def fewest_replicas(self) -> int:
        """Down to which autoscaling may go; two, where there are, so that one may fail."""
        return max(min(2, self.replicas), (self.replicas + 1) // 2)

    @property
    def replicas_cap(self) -> int:
        """Beyond it further workers would only wait for the downstream."""
        if self.most_replicas is not None:
            return self.most_replicas
        if self.limit is None:
            return 2 * self.replicas
        return max(self.replicas, self.limit // self.concurrency)

    @property
    def memory_mb(self) -> int:
        """Of one replica: its processes and their parent, or one process and its slots."""
        if self.slots is not None:
            return 2 * self.process_mb + self.slots * SLOT_MB
        return (self.concurrency + 1) * self.process_mb

    @property
    def connections(self) -> int:
        """To the database, of one replica. A plain body in a slot that uses it has one more."""
        return self.connections_of_runs + WORKER_CONNECTIONS

    @property
    def connections_of_runs(self) -> int:
        if self.slots is not None:
            return min(self.slots, SLOT_CONNECTIONS) + 1
        # A process settles a part of its batch while a body uses the other connection.
        return self.concurrency * (2 if self.batch > 1 else 1)


@dataclass(frozen=True)
class Service:
    """A part of the deployment that serves no queue: the web server, the relay, Flower.

    ``drain``: seconds it lets requests end. ``extra_connections``: to the database, of one
    process, beside one for each of its threads.
    """

    name: str
    replicas: int = 1
    surge: int = 1
    processes: int = 1
    threads: int = 1
    drain: int = 5
    process_mb: int = 200
    extra_connections: int = 1

    @property
    def connections(self) -> int:
        """To the database, of one replica."""
        return self.processes * (self.threads + self.extra_connections)

    @property
    def stop_grace_s(self) -> float:
        return self.drain + STOP_OVERHEAD_S

    @property
    def memory_mb(self) -> int:
        return (self.processes + (self.processes > 1)) * self.process_mb


@dataclass(frozen=True)
class Database:
    """``max_connections`` of PostgreSQL, ``reserved`` of them for its own people and tools."""

    max_connections: int = 100
    reserved: int = 15
    memory_mb: int = 1024


@dataclass(frozen=True)
class Broker:
    """``visibility_timeout``: seconds; follows from the longest run unless given."""

    memory_mb: int = 256
    visibility_timeout: int | None = None


@dataclass(frozen=True)
class Topology:
    """Every queue of a deployment, and what runs beside its workers.

    ``callers_repeat_for``: how long somebody may send a request again that got no answer.
    """

    queues: Mapping[str, Queue] = field(default_factory=dict)
    services: Mapping[str, Service] = field(default_factory=dict)
    database: Database = Database()
    broker: Broker = Broker()
    callers_repeat_for: timedelta = days(1)

    def __post_init__(self) -> None:
        """One name is one limit: the relays hold it by the name."""
        known: dict[str, Queue] = {}
        for queue in self.queues.values():
            if queue.downstream is None:
                continue
            first = known.setdefault(queue.downstream.name, queue)
            if first.downstream is not None and first.downstream != queue.downstream:
                raise ValueError(
                    f"downstream {queue.downstream.name}: queue {first.name} says"
                    f" {differing(first.downstream, queue.downstream)}, queue {queue.name} says"
                    f" {differing(queue.downstream, first.downstream)}, and one name is one limit;"
                    " declare it once and give it to both, or give each a name of its own"
                )

    @classmethod
    def of(
        cls,
        queues: Iterable[Queue],
        *,
        services: Iterable[Service] = (),
        database: Database | None = None,
        broker: Broker | None = None,
    ) -> Topology:
        return cls(
            by_name("queue", queues),
            by_name("service", services),
            database or Database(),
            broker or Broker(),
        )

    def queue(self, name: str) -> Queue:
        """The declared queue, or an unlimited one: a missing line must not stop a job."""
        return self.queues.get(name) or Queue(name)

    def sharing(self, queue: Queue) -> list[str]:
        """Names of the queues that call the same downstream."""
        if queue.downstream is None:
            return [queue.name]
        return [q.name for q in self.queues.values() if q.downstream == queue.downstream]

    @property
    def downstreams(self) -> list[Downstream]:
        """Each once, by name."""
        found = {q.downstream.name: q.downstream for q in self.queues.values() if q.downstream}
        return [downstream for _, downstream in sorted(found.items())]

    def calling(self, downstream: Downstream) -> list[str]:
        """Names of the queues whose jobs call it."""
        return [q.name for q in self.queues.values() if q.downstream == downstream]

    @property
    def leases_s(self) -> list[float]:
        """Every length of a lease; a queue that is not declared has the default."""
        return [LEASE_S, *(queue.lease for queue in self.queues.values())]

    @property
    def longest_s(self) -> float:
        """Seconds from the start of a run to the end of a worker that is stopped meanwhile."""
        return max((q.time_limit + q.stop_grace_s for q in self.queues.values()), default=330)

    @property
    def visibility_timeout_s(self) -> int:
        """Longer than any run and its drain, so the broker never redelivers what still runs."""
        given = self.broker.visibility_timeout
        return int(self.longest_s) + VISIBILITY_MARGIN_S if given is None else given

    @property
    def connections(self) -> int:
        """To the database, scaled up as far as it goes and with every surge of a deploy."""
        return sum(connections_of(part) for part in self.parts)

    @property
    def parts(self) -> list[Queue | Service]:
        return [*self.queues.values(), *self.services.values()]


def by_name[P: (Queue, Service)](kind: str, parts: Iterable[P]) -> dict[str, P]:
    found: dict[str, P] = {}
    for part in parts:
        if part.name in found:
            raise ValueError(
                f"{kind} {part.name}: declared twice, and one of the two would be forgotten;"
                " make one of them, or give each a name of its own"
            )
        found[part.name] = part
    return found


def differing(one: Downstream, other: Downstream) -> str:
    """What ``one`` says where the two differ: ``max_concurrency=20, rate='50/s'``."""
    names = [number.name for number in fields(one)]
    return ", ".join(
        f"{name}={getattr(one, name)!r}"
        for name in names
        if getattr(one, name) != getattr(other, name)
    )


def connections_of(part: Queue | Service) -> int:
    """At the most: autoscaled as far as it goes, and a surge beside what it replaces."""
    replicas = part.replicas_cap if isinstance(part, Queue) else part.replicas
    return (replicas + part.surge) * part.connections


DEFAULT = Topology.of([Queue("default")])
