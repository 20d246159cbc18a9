"""Habits that only a real worker shows: its pool, its parent, its messages.

One worker and one relay run them all; the tests look at what is left.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from tasks.adopt import job_id_of
from tasks.models import Job, ParkedMessage, Worker
from tests.broker import Corner, trace_table
from tests.habits import habit
from tests.processes import relay, wait_until, worker
from tests.sample_shop import tasks as shop

ADD = "tests.sample_shop.tasks.add"
TWICE, ALIEN, MISFIT = str(uuid4()), "order-7", str(uuid4())
# Databases are made for tests that ask for one.
pytestmark = pytest.mark.django_db
UNFINISHED = ("queued", "dispatched", "running")


@dataclass
class Left:
    """What a test finds: rows by label, and what was seen on the way."""

    jobs: dict[str, Job] = field(default_factory=dict)
    all_jobs: list[Job] = field(default_factory=list)
    parked: list[ParkedMessage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seen: dict[str, Any] = field(default_factory=dict)


@pytest.fixture(scope="module")
def left(django_db_setup: None, django_db_blocker: Any) -> Left:
    corner = Corner()
    corner.prefix, corner.env = "", {}  # where this process revokes
    with django_db_blocker.unblock(), trace_table() as trace:
        try:
            with worker("default", "-c", "2", env=corner.env), relay(env=corner.env):
                found = Left()
                ids = calls(found) | messages(corner)
                wait_until(nothing_waits, within_s=60, what="all jobs are done")
                wait_until(ParkedMessage.objects.exists, what="the misfit is parked")
                wait_until(lambda: corner.unacked() == 0, what="every message is acked")
            found.jobs = {name: Job.objects.get(id=job_id) for name, job_id in ids.items()}
            found.all_jobs = list(Job.objects.order_by("seq"))
            found.parked = list(ParkedMessage.objects.all())
            found.notes = trace.notes
        finally:
            corner.clear()
            Job.objects.all().delete()
            ParkedMessage.objects.all().delete()
            Worker.objects.all().delete()
    return found


def calls(found: Left) -> dict[str, UUID]:
    """What callers of today enqueue."""
    results = {
        "terminated": shop.sleepy.delay(60),
        "progress": shop.report_progress.delay(wait_s=2),
    }
    found.seen["progress"] = wait_until(
        lambda: (r := results["progress"]).status == "PROGRESS" and (r.status, r.info),
        within_s=30, what="the custom state",
    )  # fmt: skip
    wait_until(lambda: results["terminated"].status == "STARTED", within_s=30, what="it runs")
    results["terminated"].revoke(terminate=True)
    results |= {
        "soft, caught": shop.slow_to_stop.delay(True),
        "soft": shop.slow_to_stop.delay(False),
        "hard": shop.endless.apply_async(link_error=shop.tell.s()),
        "reject": shop.reject.delay(False),
        "requeue": shop.reject.delay(True),
        "request": shop.look_at_request.apply_async(headers={"trace": "abc"}, priority=3),
    }
    return {name: UUID(result.id) for name, result in results.items()}


def messages(corner: Corner) -> dict[str, UUID]:
    """What plain Celery has sent: to plain tasks, and to ours before they were ours."""
    corner.send_task("tests.sample_shop.tasks.plain_note", "plain")
    for _ in range(2):
        corner.send_task(ADD, 1, 2, id=TWICE)
    callback = dict(shop.note.si("followed"))
    embedded = {"callbacks": [callback], "errbacks": None, "chain": None, "chord": None}
    corner.send(
        [[3], {"y": 4}, embedded],
        headers={"task": ADD, "id": ALIEN, "root_id": ALIEN, "traceparent": "00-1"},
    )
    corner.send_task(ADD, 1, 2, 3, 4, id=MISFIT)
    ids = {"twice": UUID(TWICE), "alien": job_id_of(ALIEN)}
    wait_until(lambda: Job.objects.filter(id__in=ids.values()).count() == 2, what="adopted")
    return ids


def nothing_waits() -> bool:
    return not Job.objects.filter(state__in=UNFINISHED).exists()


@habit("soft_time_limit")
def test_a_soft_time_limit_is_an_exception_in_the_body(left: Left) -> None:
    assert left.jobs["soft, caught"].result == "cleaned up"
    job = left.jobs["soft"]
    assert (job.state, job.attempts) == ("failed", 1)
    assert job.error_type.endswith("SoftTimeLimitExceeded")


@habit("time_limit of the task", "link_error")
def test_a_hard_time_limit_is_a_failed_attempt_and_calls_the_errback(left: Left) -> None:
    job = left.jobs["hard"]
    assert (job.state, job.failure, job.attempts, job.crashes) == ("failed", "time_limit", 1, 0)
    told = [other.payload for other in left.all_jobs if other.task == shop.tell.name]
    assert told == [{"failed_id": str(job.id)}]


@habit("Reject")
def test_reject_fails_the_job_and_reject_with_requeue_is_a_snooze(left: Left) -> None:
    rejected, requeued = left.jobs["reject"], left.jobs["requeue"]
    assert (rejected.state, rejected.dead_letter, rejected.attempts) == ("failed", True, 1)
    assert (requeued.state, requeued.result, requeued.attempts) == ("succeeded", "second", 1)


@habit("revoke(terminate=True)")
def test_terminating_a_running_job_kills_its_body_and_cancels_it(left: Left) -> None:
    job = left.jobs["terminated"]
    assert (job.state, job.crashes) == ("cancelled", 0)
    assert job.finished_at - job.claimed_at < timedelta(seconds=45)


@habit("update_state")
def test_a_custom_state_is_seen_from_another_process(left: Left) -> None:
    assert left.seen["progress"] == ("PROGRESS", {"done": 3, "of": 10})
    assert left.jobs["progress"].result == "done"


@habit("self.request")
def test_the_request_on_a_worker_is_that_of_the_job(left: Left) -> None:
    job = left.jobs["request"]
    request = job.result
    assert (request["id"], request["headers"]) == (str(job.id), {"trace": "abc"})
    assert request["hostname"] == "worker@test"
    assert request["delivery_info"]["routing_key"] == "default"
    assert request["delivery_info"]["priority"] == 3


@habit("plain tasks")
def test_plain_tasks_run_beside_ours(left: Left) -> None:
    assert left.notes == ["plain"]


@habit("messages of before")
def test_a_message_of_plain_celery_becomes_a_job_and_runs_once(left: Left) -> None:
    job = left.jobs["twice"]
    assert (job.state, job.result, job.attempts, job.fence) == ("succeeded", 3, 1, 1)


@habit("messages of before")
def test_an_adopted_message_keeps_its_headers_and_its_links(left: Left) -> None:
    job = left.jobs["alien"]
    assert (job.state, job.result) == ("succeeded", 7)
    assert job.headers["traceparent"] == "00-1"
    followed = [other.result for other in left.all_jobs if other.task == shop.note.name]
    assert followed == ["followed"]


@habit("messages of before")
def test_a_message_whose_arguments_fit_no_more_is_parked(left: Left) -> None:
    [parked] = left.parked
    assert parked.task == ADD
    assert "cannot become a job" in parked.reason
    assert bytes(parked.body) == b"[[1, 2, 3, 4], {}]"
