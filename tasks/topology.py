"""The words in which a deployment states its numbers: downstreams, queues, and what follows.

A project writes the numbers once (``config/topology.py``) and hands them over in the setting
``TASKS_TOPOLOGY``. Nothing here imports Django, so tools can read them without a database.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

# A lease is how long a dead worker's job stays untouched. Renewed three times per lease.
LEASE_S = 15.0
# Beyond the drain a worker needs this long to give back, close and exit.
STOP_OVERHEAD_S = 10.0


def days(number: float) -> timedelta:
    return timedelta(days=number)


RATE = re.compile(r"^(\d+)/(s|m|h)$")


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
    ``rate``: calls per second, minute or hour, as ``"50/s"``.
    ``breaker``: None never stops calling.
    """

    name: str
    max_concurrency: int | None = None
    rate: str | None = None
    breaker: Breaker | None = Breaker()

    def __post_init__(self) -> None:
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise ValueError(f"downstream {self.name}: max_concurrency must be at least 1")
        if self.rate is not None and not RATE.match(self.rate):
            raise ValueError(f"downstream {self.name}: rate {self.rate!r} is not like '50/s'")


@dataclass(frozen=True)
class Queue:
    """Jobs that share a downstream, and how many of them run at once.

    ``processes`` per replica follow from the downstream's limit unless given.
    ``slots``: threads of one process instead, for jobs that wait: ``async def`` tasks share its
    event loop.
    ``time_limit``: seconds, the hard limit of a run. ``drain``: seconds a stopping worker waits.
    ``lease``: seconds. ``retention``: how long a finished job, and with it its key, is kept; a
    week, because a bug shipped on Friday must survive the weekend.

    Admission: ``max_waiting`` due jobs, ``max_waiting_per_tenant`` of one tenant, and no more than
    are expected to start within ``max_wait_s`` seconds; None is no bound. What is beyond is
    refused, or (``policy="shed"``) displaces a less important job of the same tenant.
    ``max_running_per_tenant``: jobs of one tenant on the broker and in workers at once.
    """

    name: str
    downstream: Downstream | None = None
    replicas: int = 1
    processes: int | None = None
    slots: int | None = None
    time_limit: int = 300
    drain: int = 20
    lease: float = LEASE_S
    retention: timedelta = days(7)
    max_waiting: int | None = None
    max_waiting_per_tenant: int | None = None
    max_wait_s: float | None = None
    policy: Literal["reject", "shed"] = "reject"
    max_running_per_tenant: int | None = None

    def __post_init__(self) -> None:
        if self.slots is not None and self.processes is not None:
            raise ValueError(f"queue {self.name}: give processes or slots, not both")
        if self.concurrency < 1:
            limit = self.downstream.max_concurrency if self.downstream else None
            raise ValueError(
                f"queue {self.name}: {self.replicas} replicas share a limit of {limit}; "
                "use fewer replicas or a higher max_concurrency"
            )

    @property
    def concurrency(self) -> int:
        """Runs of one replica at once: its processes, or the slots of its only one."""
        if self.slots is not None:
            return self.slots
        if self.processes is not None:
            return self.processes
        if self.downstream is None or self.downstream.max_concurrency is None:
            return 2
        return self.downstream.max_concurrency // self.replicas

    @property
    def lock_name(self) -> str:
        """Who dispatches for this limit takes this lock: the downstream's, else the queue's own."""
        return f"downstream:{self.downstream.name}" if self.downstream else f"queue:{self.name}"

    @property
    def limit(self) -> int | None:
        return self.downstream.max_concurrency if self.downstream else None

    @property
    def stop_grace_s(self) -> float:
        return self.drain + STOP_OVERHEAD_S


@dataclass(frozen=True)
class Topology:
    """Every queue of a deployment."""

    queues: Mapping[str, Queue] = field(default_factory=dict)

    @classmethod
    def of(cls, queues: Iterable[Queue]) -> Topology:
        return cls({queue.name: queue for queue in queues})

    def queue(self, name: str) -> Queue:
        """The declared queue, or an unlimited one: a missing line must not stop a job."""
        return self.queues.get(name) or Queue(name)

    def sharing(self, queue: Queue) -> list[str]:
        """Names of the queues that call the same downstream."""
        if queue.downstream is None:
            return [queue.name]
        return [q.name for q in self.queues.values() if q.downstream == queue.downstream]

    @property
    def leases_s(self) -> list[float]:
        """Every length of a lease; a queue that is not declared has the default."""
        return [LEASE_S, *(queue.lease for queue in self.queues.values())]

    @property
    def visibility_timeout_s(self) -> int:
        """Longer than any run and its drain, so the broker never redelivers what still runs."""
        longest_s = max((q.time_limit + q.stop_grace_s for q in self.queues.values()), default=330)
        return int(longest_s) + 60


DEFAULT = Topology.of([Queue("default")])
