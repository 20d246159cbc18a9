"""A worker's size follows from its queues."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from config.topology import TOPOLOGY
from tasks.models import Worker
from tasks.topology import Queue
from tests.broker import Corner
from tests.processes import wait_until, worker

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


def test_a_queue_with_slots_is_served_by_threads(corner: Corner) -> None:
    with worker("webhooks", env=corner.env) as process:
        assert wait_until(Worker.objects.first).capacity == TOPOLOGY.queue("webhooks").slots
        assert "concurrency: 100 (thread)" in process.log


def test_processes_that_are_asked_for_by_name_are_kept(corner: Corner) -> None:
    with worker("webhooks", "-P", "prefork", "-c", "1", env=corner.env) as process:
        assert "concurrency: 1 (prefork)" in process.log


def test_a_queue_among_others_without_slots_is_served_by_processes(corner: Corner) -> None:
    with worker("webhooks,default", env=corner.env) as process:
        assert "concurrency: 2 (prefork)" in process.log


def test_a_queue_has_processes_or_slots() -> None:
    with pytest.raises(ValueError, match="not both"):
        Queue("both", processes=2, slots=10)
