"""A worker's size follows from its queues."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from config.topology import TOPOLOGY
from tasks.models import Worker
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
