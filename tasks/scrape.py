"""What ``/metrics`` says: the counters of this process and the state of the ledger.

The counters are those of the process that answers. The gauges are the ledger's, so they are
the same wherever they are read. No credentials are asked for: keep the address inside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import structlog
from django.db import DatabaseError, InterfaceError
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tasks import fleet, pauses, prune
from tasks.deadline import BoundedReader
from tasks.fleet import Fleet
from tasks.pauses import Paused
from tasks.queues import (
    LimitState,
    QueueLoad,
    limit_states,
    live_relays,
    parked_messages,
    queue_loads,
)
from tasks.states import Pausable
from tasks.wiring import release

# Below Prometheus' default scrape timeout of 10 s: a slow ledger costs its own figures only.
READ_WITHIN_S = 5.0

log = structlog.get_logger(__name__)


def exposition() -> bytes:
    """All metrics in Prometheus' text format."""
    return generate_latest(REGISTRY) + generate_latest(LEDGER)


@dataclass(frozen=True)
class Reading:
    """What one scrape asks the ledger."""

    queues: list[QueueLoad]
    relays: int
    parked: int
    limits: list[LimitState]
    paused: list[Paused]
    releases: dict[str, Fleet]
    prune_overdue_s: float


def read_ledger() -> Reading:
    return Reading(
        queue_loads(), live_relays(), parked_messages(), limit_states(), pauses.listed(),
        fleet.releases(), prune.overdue_s(),
    )  # fmt: skip


class LedgerCollector(Collector):
    """Asks the ledger at each scrape. An outage of it is a figure, not an error."""

    def __init__(self) -> None:
        self._reader = BoundedReader()

    def collect(self) -> Iterator[Metric]:
        yield of_release()
        try:
            reading = self._reader.read(read_ledger, within_s=READ_WITHIN_S)
        except (DatabaseError, InterfaceError, TimeoutError) as exc:
            log.warning("ledger_not_read", error=repr(exc))
            yield gauge("tasks_ledger_up", "Whether the ledger answered.", 0)
            return
        yield gauge("tasks_ledger_up", "Whether the ledger answered.", 1)
        yield gauge("tasks_relays", "Relays that beat.", reading.relays)
        yield gauge("tasks_parked_messages", "Broker messages that are no jobs.", reading.parked)
        yield gauge(
            "tasks_prune_overdue_seconds",
            "For how long the oldest jobs are past their retention.",
            reading.prune_overdue_s,
        )
        yield from of_queues(reading.queues)
        yield from of_limits(reading.limits)
        yield of_pauses(reading.paused)
        yield from of_releases(reading.releases)


def gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def of_queues(loads: Iterable[QueueLoad]) -> Iterator[Metric]:
    jobs = GaugeMetricFamily(
        "tasks_jobs", "Unfinished jobs, counted to 10,000.", labels=["queue", "state"]
    )
    oldest = by_queue("tasks_oldest_due_age_seconds", "How long the oldest due job has waited.")
    dead = by_queue("tasks_dead_letters", "Failed jobs that wait for an operator.")
    workers = by_queue("tasks_workers", "Workers that beat and take jobs.")
    capacity = by_queue("tasks_capacity", "Jobs that these workers can run at once.")
    reconnects = by_queue(
        "tasks_broker_reconnects", "How often these workers lost the broker and found it again."
    )
    for load in loads:
        jobs.add_metric([load.name, "queued"], load.due)
        jobs.add_metric([load.name, "scheduled"], load.scheduled)
        jobs.add_metric([load.name, "held"], load.held)
        jobs.add_metric([load.name, "ordered"], load.ordered)
        jobs.add_metric([load.name, "paused"], load.paused)
        jobs.add_metric([load.name, "dispatched"], load.dispatched)
        jobs.add_metric([load.name, "running"], load.running)
        oldest.add_metric([load.name], load.oldest_due_s)
        dead.add_metric([load.name], load.dead_letters)
        workers.add_metric([load.name], load.workers)
        capacity.add_metric([load.name], load.capacity)
        reconnects.add_metric([load.name], load.reconnects)
    yield from (jobs, oldest, dead, workers, capacity, reconnects)


BREAKER_FIGURES = {"closed": 0, "half open": 1, "open": 2}


def of_limits(states: Iterable[LimitState]) -> Iterator[Metric]:
    """Downstreams by their names, tasks with a rate of their own as ``task:NAME``."""
    breaker = by_limit("tasks_breaker_state", "0 closed, 1 half open, 2 open.")
    tokens = by_limit("tasks_limit_tokens", "Calls that the rate allows right now.")
    paused = by_limit("tasks_limit_paused_seconds", "How long a job's pause lasts yet.")
    for state in states:
        name = state.name if state.kind == "downstream" else f"task:{state.name}"
        paused.add_metric([name], state.status.paused_s)
        if state.has_breaker:
            breaker.add_metric([name], BREAKER_FIGURES[state.status.breaker])
        if state.tokens is not None:
            tokens.add_metric([name], state.tokens)
    yield from (breaker, tokens, paused)


def of_pauses(rows: Iterable[Paused]) -> Metric:
    """Tenants are counted, not named: there can be many."""
    metric = GaugeMetricFamily(
        "tasks_paused", "What operators have paused.", labels=["kind", "name"]
    )
    found = Counter((row.kind, "" if row.kind == Pausable.TENANT else row.name) for row in rows)
    for (kind, name), count in sorted(found.items()):
        metric.add_metric([kind, name], count)
    return metric


def of_release() -> Metric:
    """Of this process. A counter of it belongs to the release with the same ``instance``."""
    return InfoMetricFamily(
        "tasks_release", "The release of the process that answers.", {"release": release()}
    )


def of_releases(found: Mapping[str, Fleet]) -> Iterator[Metric]:
    """By release only: a queue or a worker beside it would multiply the series at each deploy."""
    workers = GaugeMetricFamily("tasks_release_workers", "Workers that beat.", labels=["release"])
    relays = GaugeMetricFamily("tasks_release_relays", "Relays that beat.", labels=["release"])
    for name, members in sorted(found.items()):
        workers.add_metric([name], members.workers)
        relays.add_metric([name], members.relays)
    yield from (workers, relays)


def by_limit(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=["downstream"])


def by_queue(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=["queue"])


# A registry of its own: the default one would collect, and so ask the database, at import.
LEDGER = CollectorRegistry(auto_describe=False)
LEDGER.register(LedgerCollector())
