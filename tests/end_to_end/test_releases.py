"""Two releases at once: what one cannot run waits for the other, and nothing fails."""

from __future__ import annotations

import time
from collections.abc import Iterator
from uuid import UUID

import pytest

from tasks.enqueue import enqueue, enqueue_many
from tasks.models import Attempt, Job, Worker
from tasks.states import State
from tests import release_two
from tests.broker import Corner, Trace, trace_table
from tests.processes import relay, wait_until, worker

ONE = ("-I", "tests.release_one", "-c", "1")
TWO = ("-I", "tests.release_two", "-c", "1")

pytestmark = [pytest.mark.timeout(110), pytest.mark.django_db(transaction=True)]


@pytest.fixture
def corner() -> Iterator[Corner]:
    corner = Corner()
    yield corner
    corner.clear()


@pytest.fixture
def trace() -> Iterator[Trace]:
    with trace_table() as trace:
        yield trace


def job(job_id: UUID) -> Job:
    return Job.objects.get(id=job_id)


def is_held(job_id: UUID) -> bool:
    return bool(job(job_id).hold_reason)


def has_ended(job_id: UUID) -> bool:
    return job(job_id).finished_at is not None


def test_a_task_that_no_worker_knows_waits_for_one_that_does(corner: Corner, trace: Trace) -> None:
    with worker("default", *ONE, name="one", env=corner.env), relay(env=corner.env):
        job_id = enqueue(release_two.added, {"note": "x"}).job_id
        wait_until(lambda: is_held(job_id), what="held")
        number = job(job_id).dispatch_no
        time.sleep(2.5)
        held = job(job_id)
        assert (held.state, held.hold_reason, held.dispatch_no) == (
            "queued",
            "task unknown",
            number,
        )
        with worker("default", *TWO, name="two", env=corner.env):
            wait_until(lambda: has_ended(job_id), within_s=30, what="it runs")
    done = job(job_id)
    assert (done.state, done.attempts, done.crashes) == (State.SUCCEEDED, 1, 0)
    assert trace.notes == ["x"]


def test_with_both_releases_live_every_job_reaches_the_one_that_knows_it(
    corner: Corner, trace: Trace
) -> None:
    with (
        worker("default", *ONE, name="one", env=corner.env),
        worker("default", *TWO, name="two", env=corner.env),
        relay(env=corner.env),
    ):
        enqueue_many(release_two.added, [{"note": "x"}] * 12)
        wait_until(
            lambda: Job.objects.filter(state=State.SUCCEEDED).count() == 12,
            within_s=50,
            what="all run",
        )
    assert trace.notes == ["x"] * 12
    # Once a second at most: the two do not play ball with it.
    assert max(Job.objects.values_list("dispatch_no", flat=True)) < 30


def test_a_payload_that_does_not_fit_waits_for_another_release_and_has_not_failed(
    corner: Corner, trace: Trace
) -> None:
    old, new = ({**corner.env, "RELEASE": name} for name in ("r1", "r2"))
    with worker("default", *ONE, name="one", env=old), relay(env=corner.env):
        job_id = enqueue(release_two.greet, {"name": "Ada", "title": "Countess"}).job_id
        fits = enqueue(release_two.greet, {"name": "Bob"}).job_id
        wait_until(lambda: is_held(job_id) and has_ended(fits), what="held")
        held = job(job_id)
        assert held.hold_reason.startswith("incompatible: $.title: task v.greet has no such")
        assert "Countess" not in held.hold_reason
        assert (held.state, held.release, held.attempts, held.crashes) == ("queued", "r1", 0, 0)
        assert held.started_at is None
        with worker("default", *TWO, name="two", env=new):
            wait_until(lambda: has_ended(job_id), within_s=30, what="it runs")
    done = job(job_id)
    assert (done.state, done.release, done.attempts) == (State.SUCCEEDED, "r2", 1)
    [attempt] = Attempt.objects.filter(job=done)
    assert (attempt.release, attempt.worker) == ("r2", "two@test")
    releases = Worker.objects.values_list("name", "release")
    assert dict(releases) == {"one@test": "r1", "two@test": "r2"}
    assert trace.notes == ["one greets Bob", "two greets Countess Ada"]
