"""The figures of in-process pools for Prometheus, read from their snapshots at every scrape."""

from __future__ import annotations

from collections.abc import Iterator
from weakref import WeakSet

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

from tasks.pool import WorkerPool

GAUGES = {
    "depth": "Works in line.",
    "oldest_age": "Seconds the oldest of them has waited.",
    "active": "Works that run.",
    "longest_run": "Seconds the oldest of them has run.",
    "utilisation": "Share of the slots that work.",
    "waiting_for_room": "Callers who wait for a place in the line.",
}
# By the label: the name in the snapshot.
REFUSALS = {
    name: name for name in ("refused_full", "refused_closed", "refused_late", "callers_gone")
}
# The labels are the states of a ticket.
ENDS = {name: name for name in ("succeeded", "failed", "cancelled", "discarded")} | {
    "rejected": "shed"
}


class PoolCollector(Collector):
    """A pool leaves it with its last reference."""

    def __init__(self) -> None:
        self.pools: WeakSet[WorkerPool] = WeakSet()

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        snapshots = [pool.snapshot() for pool in list(self.pools)]
        for name, text in GAUGES.items():
            gauge = GaugeMetricFamily(f"tasks_pool_{name}", text, labels=["pool"])
            for snapshot in snapshots:
                gauge.add_metric([snapshot.name], getattr(snapshot, name))
            yield gauge
        for family, text, names in (
            ("tasks_pool_unanswered", "Submissions that got no ticket, by reason.", REFUSALS),
            ("tasks_pool_ended", "Tickets that ended, by end.", ENDS),
        ):
            counter = CounterMetricFamily(family, text, labels=["pool", "how"])
            for snapshot in snapshots:
                for how, name in names.items():
                    counter.add_metric([snapshot.name, how], getattr(snapshot, name))
            yield counter


def watch(pool: WorkerPool, registry: CollectorRegistry = REGISTRY) -> None:
    """Show it in the process's metrics from now on. Its name must be unique there."""
    collector = _collectors.get(registry)
    if collector is None:
        collector = _collectors[registry] = PoolCollector()
        registry.register(collector)
    collector.pools.add(pool)


_collectors: dict[CollectorRegistry, PoolCollector] = {}
