"""The numbers for people, each with the arithmetic it comes from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields

from devtools.topology.numbers import of_servers
from tasks.soundness import notes
from tasks.topology import (
    DRAIN_S,
    SLOT_MB,
    STOP_OVERHEAD_S,
    VISIBILITY_MARGIN_S,
    WORKER_CONNECTIONS,
    Downstream,
    Queue,
    Service,
    Topology,
    connections_of,
    days,
)


@dataclass(frozen=True)
class Row:
    what: str
    value: str
    why: str


def shown(topology: Topology) -> str:
    parts = [
        *(titled(f"queue {q.name}", queue_rows(q)) for q in topology.queues.values()),
        *(titled(f"service {s.name}", service_rows(s)) for s in topology.services.values()),
        titled("servers", server_rows(topology)),
        *(f"note: {note}" for note in notes(topology)),
    ]
    return "\n\n".join(parts)


def titled(title: str, rows: Iterable[Row]) -> str:
    lines = [f"  {row.what:<24}{row.value:>10}   {row.why}".rstrip() for row in rows]
    return "\n".join([title, *lines])


def queue_rows(queue: Queue) -> Iterator[Row]:
    limit, each = queue.limit, queue.concurrency
    yield Row("limit", "none" if limit is None else f"{limit}", limit_reason(queue))
    if queue.downstream is not None:
        yield from downstream_rows(queue.downstream)
    kind = "processes" if queue.slots is None else "slots"
    yield Row(f"{kind} per replica", f"{each}", concurrency_reason(queue))
    yield Row("jobs at once", f"{queue.capacity}", f"{queue.replicas} replicas x {each}")
    if queue.batch > 1:
        yield Row("batch", f"{queue.batch}", "jobs of one message at most; 250 ms of work")
    yield Row("time limit", f"{queue.time_limit} s", source(queue, "time_limit"))
    yield Row("drain", f"{queue.drain_s} s", drain_reason(queue))
    yield Row(
        "stop grace",
        f"{queue.stop_grace_s:g} s",
        f"{queue.drain_s} s drain + {STOP_OVERHEAD_S:g} s to give back and exit"
        if queue.stop_grace is None
        else "given",
    )
    yield Row(
        "lease", f"{queue.lease:g} s",
        f"{source(queue, 'lease')}; renewed every {queue.lease / 3:g} s",
    )  # fmt: skip
    yield Row("memory per replica", f"{queue.memory_mb} MB", memory_reason(queue))
    yield Row(
        "database connections",
        f"{connections_of(queue)}",
        f"(at most {queue.replicas_cap} replicas + {queue.surge} surge)"
        f" x ({queue.connections_of_runs} + {WORKER_CONNECTIONS})",
    )
    yield Row(
        "autoscaling",
        f"{queue.fewest_replicas} to {queue.replicas_cap}",
        f"when the oldest job waits {queue.acceptable_wait_s} s; "
        + ("twice the replicas" if limit is None else f"at most {limit} / {each}"),
    )
    bound = "none" if queue.max_waiting is None else f"{queue.max_waiting:,}"
    yield Row("waiting at most", bound, "beyond it new jobs are refused")
    yield Row(
        "keys kept", f"{queue.retention / days(1):g} d",
        f"{source(queue, 'retention')}; after the job has finished",
    )  # fmt: skip


def limit_reason(queue: Queue) -> str:
    downstream = queue.downstream
    if downstream is None:
        return "it calls nothing limited"
    if downstream.max_concurrency is None:
        return f"{downstream.name}: any number of calls at once"
    reserve = f" - {downstream.reserve} reserved" if downstream.reserve else ""
    return (
        f"{downstream.name}: {downstream.max_concurrency} at once{reserve}; the relay holds it,"
        " also during a deploy"
    )


def downstream_rows(downstream: Downstream) -> Iterator[Row]:
    if downstream.rate is not None:
        yield Row("rate", downstream.rate, f"{downstream.name}: calls, over all queues and relays")
    breaker = downstream.breaker
    if breaker is None:
        yield Row("breaker", "none", f"{downstream.name} is called however often it fails")
        return
    yield Row(
        "breaker", f"{breaker.failure_share:.0%}",
        f"so many of at least {breaker.least_runs} runs in {breaker.over_s:g} s fail:"
        f" no calls for {breaker.open_s:g} s, then one that probes",
    )  # fmt: skip


def source(queue: Queue, name: str) -> str:
    """Whether it differs from what a queue has that says nothing of it."""
    default = next(field.default for field in fields(queue) if field.name == name)
    return "as by default" if getattr(queue, name) == default else "given"


def concurrency_reason(queue: Queue) -> str:
    if queue.slots is not None or queue.processes is not None:
        return "given"
    if queue.limit is None:
        return "the default, where no max_concurrency is divided"
    return f"{queue.limit} / {queue.replicas} replicas, rounded down"


def drain_reason(queue: Queue) -> str:
    if queue.drain is not None:
        return "given"
    if not queue.resumable:
        return "the time limit: its jobs cannot be given back and resumed"
    return f"the shorter of {DRAIN_S} s and the time limit; what still runs is given back"


def memory_reason(queue: Queue) -> str:
    if queue.slots is not None:
        return f"2 x {queue.process_mb} MB + {queue.slots} slots x {SLOT_MB} MB"
    return f"({queue.concurrency} processes + their parent) x {queue.process_mb} MB"


def service_rows(service: Service) -> Iterator[Row]:
    yield Row("replicas", f"{service.replicas}", f"+ {service.surge} during a deploy")
    yield Row(
        "stop grace",
        f"{service.stop_grace_s:g} s",
        f"{service.drain} s to end what runs + {STOP_OVERHEAD_S:g} s to exit",
    )
    yield Row("memory per replica", f"{service.memory_mb} MB", f"{service.processes} process(es)")
    yield Row(
        "database connections",
        f"{connections_of(service)}",
        f"({service.replicas} replicas + {service.surge} surge) x {service.processes} process(es)"
        f" x ({service.threads} threads + {service.extra_connections})",
    )


def server_rows(topology: Topology) -> Iterator[Row]:
    database = topology.database
    yield Row(
        "database connections",
        f"{topology.connections}",
        f"the sum of all above; free are {database.max_connections} max_connections -"
        f" {database.reserved} reserved = {database.max_connections - database.reserved}",
    )
    yield Row(
        "visibility timeout",
        f"{topology.visibility_timeout_s} s",
        f"{topology.longest_s:g} s longest time limit + stop grace, + {VISIBILITY_MARGIN_S} s",
    )
    yield Row(
        "broker memory",
        f"{topology.broker.memory_mb} MB",
        "noeviction: full is an error; its container gets twice as much, because Redis rewrites"
        " its log in a copy of itself",
    )
    yield memory_row(topology)


def memory_row(topology: Topology) -> Row:
    """What the machines need together: the limits of all containers."""
    workers = sum(queue.replicas * queue.memory_mb for queue in topology.queues.values())
    services = sum(part.replicas * part.memory_mb for part in topology.services.values())
    servers = of_servers(topology)
    database, broker = servers["database_memory_mb"], servers["broker_container_mb"]
    return Row(
        "memory in all",
        f"{workers + services + database + broker} MB",
        f"{workers} workers + {services} services + {database} database + {broker} broker"
        f" (2 x {topology.broker.memory_mb});"
        " without a deploy's surge and autoscaling",
    )
