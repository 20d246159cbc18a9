"""The bank takes half as many calls: one number is changed, and what runs follows it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tasks.models import Job, Worker
from tests.broker import Corner
from tests.job_rows import job_row
from tests.processes import Process, environment, running, wait_until
from tests.unit.test_topology_command import checkout, compose, replace, topology

__all__ = ["checkout"]  # a fixture

pytestmark = [pytest.mark.timeout(180), pytest.mark.django_db(transaction=True)]


@pytest.fixture
def corner() -> Iterator[Corner]:
    corner = Corner()
    yield corner
    corner.clear()


def test_half_the_bank_halves_what_a_worker_starts_and_what_the_relay_sends(
    checkout: Path, corner: Corner
) -> None:
    assert starts_with(checkout, corner) == 5
    assert relay_sends(checkout, corner, expected=20) == 20

    replace(checkout / "config/topology.py", "max_concurrency=20", "max_concurrency=10")
    assert topology(checkout, "--check")[0] == 1
    assert topology(checkout, "--write")[0] == 0
    assert topology(checkout, "--check")[0] == 0
    assert "-c" not in compose(checkout)["worker-payments"]["command"]  # type: ignore[operator]

    assert starts_with(checkout, corner) == 2
    assert relay_sends(checkout, corner, expected=10) == 10


def starts_with(checkout: Path, corner: Corner) -> int:
    """The capacity that ``celery -A project worker -Q payments`` reports."""
    argv = ("-m", "celery", "-A", "project", "worker", "-Q", "payments", "-n", "pay@test")
    with changed(checkout, corner, "worker", *argv, "--without-mingle"):
        capacity = wait_until(
            lambda: Worker.objects.filter(name="pay@test").values_list("capacity", flat=True)[:1],
            within_s=30,
        )[0]
    Worker.objects.all().delete()
    return int(capacity)


def relay_sends(checkout: Path, corner: Corner, *, expected: int) -> int:
    """How many of 40 jobs it dispatches where the workers say that they could take all of them."""
    later = datetime.now(UTC) + timedelta(hours=1)
    able = {"host": "h", "pid": 1, "queues": ["payments", "default"], "known_tasks": []}
    Worker.objects.create(name="able", capacity=100, last_beat=later, **able)
    for _ in range(40):
        job_row(queue="payments")
    sent = Job.objects.filter(state="dispatched", queue="payments")
    with changed(checkout, corner, "relay", "manage.py", "relay"):
        wait_until(lambda: sent.count() >= expected, within_s=30, what="dispatched")
        # Twice, so that it has looked at all queues once more in between.
        for _ in range(2):
            wait_for_another_pass()
        count = sent.count()
    Worker.objects.all().delete()
    Job.objects.all().delete()
    return count


def wait_for_another_pass() -> None:
    other = Job.objects.filter(id=job_row(queue="default").id, state="dispatched")
    wait_until(other.exists, within_s=30, what="the relay has looked again")


@contextmanager
def changed(checkout: Path, corner: Corner, name: str, *argv: str) -> Iterator[Process]:
    """A process of the copy."""
    settings = {"DJANGO_SETTINGS_MODULE": "project.settings", "PYTHONPATH": str(checkout)}
    env = environment({**corner.env, **settings})
    with running(Process(name, [sys.executable, *argv], env, checkout)) as process:
        yield process
