"""A worker's size follows from its queues."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tasks import worker_options
from tasks.models import Worker
from tasks.topology import Queue, Topology
from tests.broker import Corner
from tests.habits import habit
from tests.processes import wait_until, worker
from tests.sample_topology import TOPOLOGY

pytestmark = [pytest.mark.timeout(60), pytest.mark.django_db(transaction=True)]


@pytest.fixture
def corner() -> Iterator[Corner]:
    corner = Corner()
    yield corner
    corner.clear()


def test_concurrency_and_time_limit_follow_from_the_queue(corner: Corner) -> None:
    payments = TOPOLOGY.queue("payments")
    with worker("payments", env=corner.env) as process:
        row = wait_until(Worker.objects.first)
        assert row.capacity == payments.concurrency
        process.wait_for(rf"worker_options.*time_limit_s={payments.time_limit}")


def test_the_command_line_wins(corner: Corner) -> None:
    with worker("payments", "-c", "1", "--time-limit", "7", env=corner.env) as process:
        assert wait_until(Worker.objects.first).capacity == 1
        process.wait_for(r"worker_options.*concurrency=1 .*time_limit_s=7")


@habit("--autoscale")
def test_autoscale_is_refused_with_the_reason(corner: Corner) -> None:
    with worker("payments", "--autoscale", "10,2", env=corner.env, ready=False) as process:
        assert process.wait(within_s=30) == 1
        assert "--autoscale=10,2 is refused: memory and database connections" in process.log


def test_queues_of_one_pool_share_a_worker(corner: Corner) -> None:
    with worker("payments,bulk", env=corner.env):
        row = wait_until(Worker.objects.first)
        assert row.capacity == min(TOPOLOGY.queue(name).concurrency for name in row.queues)


def test_queues_that_need_different_pools_are_refused(settings: Any) -> None:
    settings.TASKS_TOPOLOGY = Topology.of([Queue("a", slots=10), Queue("b", processes=2)])
    with pytest.raises(SystemExit, match=r"-Q a,b is refused: .* \(a threads, b prefork\)"):
        worker_options.refuse(["a", "b"], given={})
    worker_options.refuse(["a"], given={})


@pytest.mark.parametrize(("of_settings", "gets"), [("prefork", "threads"), ("solo", "prefork")])
def test_a_queue_with_slots_gets_threads_unless_the_settings_name_another_pool(
    settings: Any, of_settings: str, gets: str
) -> None:
    settings.TASKS_TOPOLOGY = Topology.of([Queue("a", slots=10)])
    app = SimpleNamespace(conf=SimpleNamespace(worker_pool=of_settings))
    pool = worker_options.pool_name(["a"])
    worker = SimpleNamespace(app=app, pool_cls="prefork", pool_of_queues=pool)
    worker_options.choose_pool(worker)
    assert worker.pool_cls == gets


def test_processes_that_are_asked_for_by_name_are_kept(corner: Corner) -> None:
    with worker("webhooks", "-P", "prefork", "-c", "1", env=corner.env) as process:
        assert "concurrency: 1 (prefork)" in process.log
