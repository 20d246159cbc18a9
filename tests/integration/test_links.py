"""What follows a job: links, chains and errbacks."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from celery import chain, group
from django.db import DatabaseError

from tasks import ledger, links
from tasks.links import Followers
from tasks.models import Job
from tasks.testing import run_jobs
from tests.habits import habit
from tests.sample_shop import tasks as shop

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    shop.SEEN.clear()


def results_of(task: Any) -> list[Any]:
    return [job.result for job in Job.objects.filter(task=task.name).order_by("seq")]


# --- link ---------------------------------------------------------------------------------


@habit("link")
@pytest.mark.parametrize(
    ("link", "value"),
    [
        (lambda: shop.add.s(10), 13),
        (lambda: shop.add.si(10, 10), 20),
        (lambda: shop.add.s(10) | shop.add.s(100), 113),
    ],
)
def test_a_link_is_a_job_that_gets_the_result(link: Any, value: int) -> None:
    shop.add.apply_async((1, 2), link=link())
    jobs = run_jobs()
    assert jobs[-1].result == value
    assert jobs[1].headers["celery"]["parent_id"] == str(jobs[0].id)


@habit("link")
def test_several_links_and_a_group_all_follow() -> None:
    shop.add.apply_async((1, 2), link=[shop.add.s(10), group(shop.add.s(20), shop.add.s(30))])
    run_jobs()
    assert sorted(results_of(shop.add)) == [3, 13, 23, 33]


@habit("link")
def test_a_failed_or_retried_job_has_no_successor_yet() -> None:
    shop.fail.apply_async(link=shop.note.si("never"))
    shop.retry_by_hand.apply_async((True, 60), link=shop.note.s())
    run_jobs()
    assert shop.SEEN == []
    run_jobs(include_scheduled=True)
    assert shop.SEEN == ["retries: 1"]


@habit("link")
def test_a_link_that_refuses_the_result_fails_the_job_and_says_why() -> None:
    shop.note.apply_async(("text",), link=shop.add.s(1))
    [job] = run_jobs()
    assert (job.state, job.error_type) == ("failed", "tasks.links.NotFollowed")
    assert "the run succeeded, what follows is refused: $.x" in job.error_message
    assert Job.objects.count() == 1


@habit("link")
def test_a_result_that_json_cannot_hold_is_not_passed_on() -> None:
    shop.RETURNED["it"] = float("nan")
    shop.give_back.apply_async(("it",), link=shop.untyped.s())
    [job] = run_jobs()
    assert job.state == "failed"
    assert "cannot be passed on: NaN and Infinity became null" in job.error_message


@habit("link")
def test_a_run_that_lost_its_job_enqueues_nothing() -> None:
    result = shop.add.delay(1, 2)
    job_id = UUID(result.id)
    number = ledger.dispatch_here(job_id)
    claim = ledger.claim(job_id, number, worker="w", release="", lease_s=60)
    assert claim is not None
    followers = Followers(shop.add.app, str(job_id), str(job_id), [dict(shop.note.si("x"))], [])
    stale = claim.fence - 1
    assert not links.succeed(job_id, stale, result="3", note="", followers=followers, value=3)
    assert Job.objects.count() == 1


@habit("link")
def test_success_and_what_follows_are_recorded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **kwargs: Any) -> Any:
        raise DatabaseError("the connection is gone")

    shop.add.apply_async((1, 2), link=shop.note.si("x"))
    monkeypatch.setattr("tasks.admission.accept.accept", fails)
    run_jobs()
    assert Job.objects.get().state == "running"  # until its lease ends, then it runs again


# --- chain --------------------------------------------------------------------------------


@habit("chain")
def test_each_step_of_a_chain_is_a_job_that_gets_the_result_of_the_one_before() -> None:
    result = chain(shop.add.s(1, 2), shop.add.s(10), shop.add.s(100)).apply_async()
    first, second, third = run_jobs()
    assert [first.result, second.result, third.result] == [3, 13, 113]
    assert (result.id, result.get()) == (str(third.id), 113)
    assert result.parent.parent.id == str(first.id)
    assert third.headers["celery"]["root_id"] == str(first.id)


@habit("chain")
def test_a_chain_stops_at_the_step_that_fails_and_its_result_raises() -> None:
    result = chain(shop.add.s(1, 2), shop.fail.si("halfway"), shop.note.s()).apply_async()
    run_jobs()
    assert shop.SEEN == []
    with pytest.raises(shop.Unavailable, match="halfway"):
        result.get(timeout=5)


@habit("chain")
def test_a_step_that_runs_twice_does_not_enqueue_the_next_one_twice() -> None:
    chain(shop.add.s(1, 2), shop.add.s(10)).apply_async()
    first = Job.objects.get()
    run_jobs()
    second = Job.objects.exclude(id=first.id).get()
    step = first.headers["celery"]["chain"][-1]
    assert str(second.id) == step["options"]["task_id"]


@habit("chain")
def test_a_chain_may_end_in_a_group() -> None:
    chain(shop.add.s(1, 2), group(shop.add.s(10), shop.add.s(20))).apply_async()
    run_jobs()
    assert sorted(results_of(shop.add)) == [3, 13, 23]


@habit("chain")
def test_a_result_passes_through_json_on_its_way_to_the_next_step() -> None:
    order = uuid4()
    shop.RETURNED["it"] = order
    chain(shop.give_back.s("it"), shop.typed.s()).apply_async()
    _, second = run_jobs()
    assert second.result[0] == f"UUID {order}"


# --- link_error ---------------------------------------------------------------------------


@habit("link_error")
def test_an_errback_with_the_id_alone_is_a_job() -> None:
    result = shop.fail.apply_async(link_error=shop.tell.s())
    run_jobs()
    assert results_of(shop.tell) == [result.id]


@habit("link_error")
def test_an_errback_with_request_and_error_is_called_in_the_worker() -> None:
    result = shop.fail.apply_async(link_error=shop.inspect_failure.s())
    assert len(run_jobs()) == 1
    assert [("inspect_failure", result.id, "Unavailable")] == shop.SEEN


@habit("link_error")
def test_a_retry_calls_no_errback_and_the_last_failure_calls_it_once() -> None:
    shop.retry_for_ever.apply_async((True,), {"countdown": 60}, link_error=shop.tell.s())
    run_jobs()
    assert results_of(shop.tell) == []
    run_jobs(include_scheduled=True)
    assert len(results_of(shop.tell)) == 1


@habit("link_error")
def test_errbacks_of_a_chain_follow_whichever_step_fails() -> None:
    chain(shop.add.s(1, 2), shop.fail.si("x")).apply_async(link_error=shop.tell.s())
    run_jobs()
    assert len(results_of(shop.tell)) == 1
