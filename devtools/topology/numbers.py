"""The derived numbers by their names: what templates and foreign manifests are filled with."""

from __future__ import annotations

from typing import Any

from tasks.topology import Queue, Service, Topology

# Seconds for which a stopping web server still answers: until the last router knows.
LEAVE_ROUTERS_S = 5
# Seconds from SIGTERM to SIGKILL on Kubernetes are counted from the beginning of preStop.
SPARE_S = LEAVE_ROUTERS_S
# A queue's oldest due job is this many times too old before somebody is woken.
LATE_TIMES = 5


def of_queue(queue: Queue) -> dict[str, Any]:
    return {
        "name": queue.name,
        "resource": resource(queue.name),
        "replicas": queue.replicas,
        "surge": queue.surge,
        "unavailable": 0 if queue.surge else 1,
        "concurrency": queue.concurrency,
        "pool": queue.pool,
        "slots_in_all": queue.capacity,
        "limit": queue.limit if queue.limit is not None else "none",
        "time_limit_s": queue.time_limit,
        "lease_s": f"{queue.lease:g}",
        "drain_s": queue.drain_s,
        "stop_grace_s": int(queue.stop_grace_s),
        "memory_mb": queue.memory_mb,
        "memory_request_mb": queue.memory_mb // 2,
        "connections": queue.connections,
        "fewest_replicas": queue.fewest_replicas,
        "most_replicas": queue.replicas_cap,
        "acceptable_wait_s": queue.acceptable_wait_s,
        "late_s": queue.acceptable_wait_s * LATE_TIMES,
        "max_waiting": queue.max_waiting if queue.max_waiting is not None else "unbounded",
    }


def of_service(service: Service) -> dict[str, Any]:
    return {
        "name": service.name,
        "replicas": service.replicas,
        "surge": service.surge,
        "unavailable": 0 if service.surge else 1,
        "processes": service.processes,
        "threads": service.threads,
        "drain_s": service.drain,
        "stop_grace_s": int(service.stop_grace_s),
        "stop_grace_with_prestop_s": int(service.stop_grace_s) + SPARE_S,
        "leave_routers_s": LEAVE_ROUTERS_S,
        "memory_mb": service.memory_mb,
        "memory_request_mb": service.memory_mb // 2,
        "connections": service.connections,
    }


def of_servers(topology: Topology) -> dict[str, Any]:
    database, broker = topology.database, topology.broker
    return {
        "max_connections": database.max_connections,
        "connections": topology.connections,
        "connections_free": database.max_connections - database.reserved,
        "database_memory_mb": database.memory_mb,
        # A quarter of the memory is PostgreSQL's own advice; the kernel caches with the rest.
        "shared_buffers_mb": database.memory_mb // 4,
        "broker_memory_mb": broker.memory_mb,
        # Redis needs room beside its data: the AOF is rewritten by a copy of the process.
        "broker_container_mb": broker.memory_mb * 2,
        "visibility_timeout_s": topology.visibility_timeout_s,
    }


def numbers(topology: Topology) -> dict[str, Any]:
    """Everything, for ``--format``."""
    return {
        "queues": {name: of_queue(queue) for name, queue in topology.queues.items()},
        "services": {name: of_service(service) for name, service in topology.services.items()},
        "servers": of_servers(topology),
    }


def resource(name: str) -> str:
    """A name that Kubernetes and DNS accept."""
    return name.lower().replace("_", "-").replace(".", "-")
