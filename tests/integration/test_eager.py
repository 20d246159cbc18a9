"""``task_always_eager`` and ``.apply()``: here and now, through the ledger all the same."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import Any

import pytest
from celery import chain, group
from celery.result import EagerResult

from project.celery import app
from tasks.errors import InvalidPayload
from tasks.models import Attempt, Job
from tasks.wiring import topology
from tests.habits import habit
from tests.ledger_tasks import tells_its_lease
from tests.sample_shop import tasks as shop

pytestmark = pytest.mark.django_db


@pytest.fixture
def eager() -> Iterator[None]:
    app.conf.task_always_eager = True
    yield
    app.conf.task_always_eager = False
    app.conf.task_eager_propagates = False


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    shop.SEEN.clear()


@habit("task_always_eager")
def test_an_eager_call_leaves_the_same_rows_as_a_worker(eager: None) -> None:
    result = shop.add.delay(1, 2)
    job = Job.objects.get(id=result.id)
    assert (job.state, job.result, result.get(), result.status) == ("succeeded", 3, 3, "SUCCESS")
    assert Attempt.objects.get(job=job).outcome == "succeeded"


@habit("task_always_eager")
def test_eager_arguments_make_the_way_through_json(eager: None) -> None:
    assert shop.typed.delay(day=date(2026, 11, 30)).get()[1] == "date 2026-11-30"
    with pytest.raises(InvalidPayload):
        shop.untyped.delay(date(2026, 11, 30))


@habit("task_always_eager")
def test_eager_retries_do_not_wait(eager: None) -> None:
    result = shop.retry_for_ever.delay(countdown=3600)
    job = Job.objects.get(id=result.id)
    assert (job.state, job.attempts, result.status) == ("failed", 2, "FAILURE")
    with pytest.raises(shop.Unavailable):
        result.get()


@habit("task_always_eager")
def test_an_eager_task_that_never_ends_is_stopped(
    eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.inline.MOST_RUNS", 10)
    with pytest.raises(RuntimeError, match="ran 10 times"):
        shop.retry_by_itself.delay()


@habit("task_eager_propagates")
def test_errors_propagate_where_the_setting_says_so(eager: None) -> None:
    app.conf.task_eager_propagates = True
    with pytest.raises(shop.Unavailable, match="broken"):
        shop.fail.delay()
    assert Job.objects.get().state == "failed"


@habit("task_always_eager")
def test_links_chains_and_groups_run_eagerly_too(eager: None) -> None:
    shop.add.apply_async((1, 2), link=shop.note.si("linked"))
    assert shop.SEEN == ["linked"]
    assert chain(shop.add.s(1, 2), shop.add.s(10)).apply_async().get() == 13
    assert group(shop.add.s(i, 1) for i in range(3)).apply_async().get() == [1, 2, 3]
    assert not Job.objects.exclude(state="succeeded").exists()


@habit("task_always_eager")
def test_a_body_that_enqueues_has_its_child_run_at_once(eager: None) -> None:
    shop.enqueue_more.delay(3)
    assert sorted(Job.objects.values_list("result", flat=True)) == [0, 1, 2, 3]


@habit("task_always_eager")
def test_send_task_is_eager_too(eager: None) -> None:
    assert app.send_task("tests.sample_shop.tasks.add", [1, 2]).get() == 3


@habit("task_always_eager", "self.request")
def test_the_body_can_see_that_it_runs_eagerly(eager: None) -> None:
    request: dict[str, Any] = shop.look_at_request.delay().get()
    assert request["is_eager"]


@habit(".apply()")
def test_apply_runs_the_job_here_and_returns_an_eager_result() -> None:
    result = shop.add.apply((1, 2))
    assert isinstance(result, EagerResult)
    assert (result.get(), result.status) == (3, "SUCCESS")
    assert Job.objects.get(id=result.id).state == "succeeded"
    assert shop.add.s(1, 2).apply().get() == 3


@habit(".apply()")
def test_a_job_that_runs_here_has_a_lease_for_all_its_time() -> None:
    """Nobody renews it, and no relay must take it away while it runs."""
    queue = topology().queue("default")
    assert tells_its_lease.apply().get() == queue.time_limit + queue.lease


@habit(".apply()")
def test_apply_returns_or_raises_what_the_body_raised() -> None:
    failed = shop.fail.apply(("blocked",))
    assert (failed.status, str(failed.result)) == ("FAILURE", "blocked")
    assert "raise Unavailable" in failed.traceback
    with pytest.raises(shop.Unavailable, match="blocked"):
        failed.get()
    with pytest.raises(shop.Unavailable, match="blocked"):
        shop.fail.apply(("blocked",), throw=True)


@habit(".apply()")
def test_apply_of_a_job_that_retries_runs_to_its_end() -> None:
    assert shop.retry_by_hand.apply().get() == "retries: 1"
    assert shop.ignore.apply().status == "REVOKED"
