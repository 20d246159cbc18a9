"""What a deployment relies on holds on Redis and on RabbitMQ alike: real workers, real brokers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from devtools.proxy import FaultyProxy
from devtools.pytest_rabbitmq import need_rabbitmq
from devtools.servers import RabbitMQ
from tasks.enqueue import Item, enqueue, enqueue_many
from tasks.errors import InvalidPayload
from tasks.models import Job
from tasks.states import State
from tests import surviving_tasks
from tests.broker import (
    Corner,
    RabbitCorner,
    Trace,
    corner_of,
    on_each_broker,
    trace_table,
)
from tests.habits import habit
from tests.processes import relay, wait_until, worker
from tests.sample_shop import tasks as shop

TASKS = ("-I", "tests.surviving_tasks")

pytestmark = [pytest.mark.timeout(150), pytest.mark.django_db(transaction=True)]


@pytest.fixture
def corner(request: pytest.FixtureRequest) -> Iterator[Corner]:
    corner = corner_of(request.param)
    yield corner
    corner.clear()


@pytest.fixture
def trace() -> Iterator[Trace]:
    with trace_table() as trace:
        yield trace


def ends(job_id: UUID, *, within_s: float = 40.0) -> Job:
    wait_until(
        lambda: Job.objects.get(id=job_id).finished_at is not None,
        within_s=within_s,
        what="it ends",
    )
    return Job.objects.get(id=job_id)


@habit("priority")
@on_each_broker
def test_priorities_mean_the_same_order_and_a_retry_comes_back(
    corner: Corner, trace: Trace
) -> None:
    """The broker has one plain queue: the relay decides what goes next."""
    items = [Item({"note": str(p), "seconds": 0}, priority=p) for p in (0, 1, 5, 9, 50, -3)]
    last = enqueue_many(surviving_tasks.slow, items)[-1].job_id
    with relay(env=corner.env), worker("default", *TASKS, "-c", "1", env=corner.env):
        ends(last)
        retried = ends(UUID(shop.retry_by_hand.delay(countdown=1).id))
    begun = [note.removesuffix(" begins") for note in trace.notes if note.endswith(" begins")]
    assert begun == ["50", "9", "5", "1", "0", "-3"]
    assert (retried.state, retried.attempts, retried.result) == ("succeeded", 2, "retries: 1")
    assert corner.waiting() == 0


@pytest.mark.parametrize("priority", [-101, 101, 255])
def test_a_priority_that_cannot_be_honoured_is_refused(priority: int) -> None:
    with pytest.raises(InvalidPayload, match="-100 to 100"):
        enqueue(surviving_tasks.slow, {"note": "x", "seconds": 0}, priority=priority)
    assert not Job.objects.exists()


@on_each_broker
def test_what_a_lost_connection_delivers_again_does_not_run_again(
    corner: Corner, trace: Trace
) -> None:
    """The connections of a worker break during its run; another one is idle and takes the
    message. Then nobody reaches the broker for a while."""
    with FaultyProxy("127.0.0.1", corner.port) as proxy:
        env = {**corner.env, "BROKER_URL": corner.url_at(proxy.port)}
        with (
            relay(env=env),
            worker("default", *TASKS, "-c", "1", env=env) as first,
            worker("default", *TASKS, "-c", "1", name="w2", env=corner.env),
        ):
            jobs = [
                enqueue(surviving_tasks.slow, {"note": note, "seconds": 8}).job_id
                for note in ("x", "y")
            ]
            wait_until(lambda: len(trace.notes) == 2, within_s=20, what="both run")
            proxy.reset()
            first.wait_for("Trying to re-establish the connection|[Cc]onnection .*lost")
            proxy.refuse()
            late = enqueue(surviving_tasks.slow, {"note": "late", "seconds": 0}).job_id
            for job_id in jobs:
                done = ends(job_id)
                assert (done.state, done.crashes, done.attempts) == (State.SUCCEEDED, 0, 1)
            assert Job.objects.get(id=late).state == State.QUEUED
            proxy.pass_on()
            ends(late, within_s=30)
            assert first.is_running
    assert sorted(note for note in trace.notes if "begins" in note) == [
        "late begins",
        "x begins",
        "y begins",
    ]


def test_rabbitmq_may_close_the_channel_of_a_long_run_and_restart(
    tmp_path: Path, trace: Trace
) -> None:
    """With a delivery timeout of 3 s in place of 30 minutes."""
    need_rabbitmq()
    timeouts = {"consumer_timeout": 3000, "channel_tick_interval": 500}
    with RabbitMQ(tmp_path, settings=timeouts) as server:
        corner, address = RabbitCorner(server.url), server.url
        corner.send_task("unknown.kept", queue="kept")
        with (
            relay(env=corner.env),
            worker("default", *TASKS, "-c", "1", env=corner.env) as process,
        ):
            long = enqueue(surviving_tasks.slow, {"note": "x", "seconds": 7}).job_id
            process.wait_for("delivery acknowledgement on channel . timed out")
            done = ends(long)
            assert (done.state, done.crashes, done.attempts) == (State.SUCCEEDED, 0, 1)
            server.restart()
            after = enqueue(surviving_tasks.slow, {"note": "y", "seconds": 0}).job_id
            assert ends(after).state == State.SUCCEEDED
            assert process.is_running
        assert trace.notes.count("x begins") == 1
        assert (server.url, corner.waiting("kept")) == (address, 1)
