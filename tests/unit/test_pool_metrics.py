"""What Prometheus sees of a pool."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry, generate_latest

from tasks.pool import WorkerPool
from tasks.pool_metrics import watch
from tests.pool.loops import quick


def test_the_metrics_of_a_pool_say_what_its_snapshot_says() -> None:
    async def use(pool: WorkerPool) -> None:
        await (await pool.submit("job", quick)).result()
        await (await pool.submit("job", quick)).result()

    registry = CollectorRegistry()
    pool = WorkerPool(slots=2, capacity=2, name="deliveries")
    watch(pool, registry)
    watch(WorkerPool(slots=1, capacity=1, name="gone"), registry)
    asyncio.run(use(pool))
    text = generate_latest(registry).decode()
    assert 'tasks_pool_ended_total{how="succeeded",pool="deliveries"} 2.0' in text
    assert 'tasks_pool_ended_total{how="rejected",pool="deliveries"} 0.0' in text
    assert 'tasks_pool_utilisation{pool="deliveries"} 0.0' in text
    assert 'tasks_pool_unanswered_total{how="refused_full",pool="deliveries"} 0.0' in text
    assert "gone" not in text.replace("callers_gone", "")
