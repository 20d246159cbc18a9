"""AsyncResult over the ledger."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from celery.exceptions import TaskRevokedError
from celery.exceptions import TimeoutError as CeleryTimeoutError
from celery.result import AsyncResult
from django.db import connection

from project.celery import app
from tasks import ledger
from tasks.models import Job
from tasks.testing import run_jobs
from tests.habits import habit
from tests.sample_shop import tasks as shop

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    shop.SEEN.clear()


@habit("AsyncResult.status", "AsyncResult.get")
def test_a_result_tells_state_and_value() -> None:
    result = shop.add.delay(1, 2)
    assert (result.status, result.ready(), result.result) == ("PENDING", False, None)
    run_jobs()
    assert (result.status, result.ready(), result.successful()) == ("SUCCESS", True, True)
    assert (result.get(), result.result, result.name) == (3, 3, "tests.sample_shop.tasks.add")
    assert abs((result.date_done - datetime.now(UTC)).total_seconds()) < 30
    assert AsyncResult(result.id, app=app).get() == 3


@habit("AsyncResult.get")
def test_a_failure_is_raised_with_its_class_and_traceback() -> None:
    result = shop.fail.delay("the card is blocked")
    run_jobs()
    assert (result.status, result.failed()) == ("FAILURE", True)
    with pytest.raises(shop.Unavailable, match="the card is blocked"):
        result.get()
    assert isinstance(result.get(propagate=False), shop.Unavailable)
    assert "raise Unavailable" in result.traceback


@habit("AsyncResult.get")
def test_get_gives_up_at_its_timeout() -> None:
    result = shop.add.delay(1)
    connection.run_on_commit.clear()  # as if it were committed
    with pytest.raises(CeleryTimeoutError):
        result.get(timeout=0.01)


@habit("AsyncResult.get")
def test_get_inside_the_transaction_that_enqueued_raises_instead_of_hanging() -> None:
    with pytest.raises(RuntimeError, match="Commit first"):
        shop.add.delay(1).get(timeout=5)


@habit("AsyncResult.get")
def test_get_inside_a_job_is_as_forbidden_as_in_celery(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery.result.task_join_will_block", lambda: True)
    with pytest.raises(RuntimeError, match="Never call result"):
        shop.add.delay(1).get()


@habit("AsyncResult.revoke")
def test_revoke_cancels_the_job_and_says_who() -> None:
    result = shop.note.delay("never")
    result.revoke()
    job = Job.objects.get(id=result.id)
    assert (job.state, result.status) == ("cancelled", "REVOKED")
    assert [action.actor for action in job.actions.all()] == ["celery revoke"]
    with pytest.raises(TaskRevokedError):
        result.get()
    assert run_jobs() == []


@habit("AsyncResult.forget")
def test_forget_drops_the_callers_copy_and_the_job_stays() -> None:
    result = shop.add.delay(1, 2)
    run_jobs()
    result.forget()
    assert result.get() == 3


@habit("AsyncResult.children")
def test_children_are_unknown_not_none_at_all() -> None:
    result = shop.look_at_child.delay()
    run_jobs()
    assert result.children is None


@habit("ignore_result")
def test_an_ignored_result_is_not_kept_and_not_waited_for() -> None:
    by_task, by_call = shop.forgettable.delay(5), shop.add.apply_async((5,), ignore_result=True)
    kept = shop.forgettable.apply_async((5,), ignore_result=False)
    assert (by_task.get(), by_call.get()) == (None, None)
    run_jobs()
    for result in (by_task, by_call):
        job = Job.objects.get(id=result.id)
        assert (job.state, job.result, job.result_note) == (
            "succeeded", None, "ignored by the task",
        )  # fmt: skip
    assert kept.get() == 5


@habit("update_state")
def test_a_custom_state_is_seen_while_the_job_runs() -> None:
    result = shop.report_progress.delay()
    run_jobs()
    [seen] = shop.SEEN
    assert (seen["status"], seen["result"]) == ("PROGRESS", {"done": 3, "of": 10})
    assert result.get() == "done"


@habit("update_state")
@pytest.mark.parametrize("state", ["SUCCESS", "FAILURE", "REVOKED", "RETRY"])
def test_an_outcome_cannot_be_set_as_a_state(state: str) -> None:
    shop.report_progress.delay(state)
    [job] = run_jobs()
    assert (job.state, job.error_type) == ("failed", "builtins.TypeError")
    assert "raise Fail(reason)" in job.error_message


@habit("update_state")
def test_update_state_outside_a_job_does_nothing() -> None:
    shop.add.update_state(state="PROGRESS", meta={})


@habit("track_started")
def test_a_running_job_is_started_whatever_track_started_says() -> None:
    result = shop.add.delay(1)
    job = Job.objects.get(id=result.id)
    number = ledger.dispatch_here(job.id)
    ledger.claim(job.id, number, worker="w", release="", lease_s=60)
    assert result.status == "STARTED"
    assert not result.ready()


@habit("plain tasks")
def test_the_result_of_a_plain_task_is_not_waited_for_in_vain() -> None:
    result = shop.plain_add.AsyncResult(str(uuid4()))
    assert result.status == "PENDING"
    with pytest.raises(NotImplementedError, match="plain tasks keep no result"):
        result.get()


@habit("AsyncResult.get")
@pytest.mark.parametrize(
    ("value", "kept", "note"),
    [
        ({"b": 1, "a": [1.5, None]}, {"b": 1, "a": [1.5, None]}, ""),
        (float("nan"), None, "NaN and Infinity became null"),
        ((1, 2), [1, 2], ""),
    ],
)
def test_a_value_json_cannot_hold_is_kept_in_a_safe_form(value: Any, kept: Any, note: str) -> None:
    shop.RETURNED["it"] = value
    result = shop.give_back.delay("it")
    [job] = run_jobs()
    assert (result.get(), job.result_note) == (kept, note)
