"""The helpers for users' own tests: what they run is what a worker would run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import Group
from django.test import TestCase

from tasks.enqueue import enqueue
from tasks.errors import InvalidPayload
from tasks.models import Attempt, Job
from tasks.testing import assert_enqueued, run_jobs, run_jobs_fixture  # noqa: F401
from tests.processes import environment, relay, wait_until, worker
from tests.sample_shop import tasks as shop

RunJobs = Callable[..., list[Job]]

ORDER = UUID("6ec0bd7f-11c0-43da-975e-2a8ad9ebae0b")
# What a caller may pass, to a parameter with an annotation that says so.
FITTING: dict[str, Any] = {
    "order": ORDER,
    "day": date(2026, 11, 30),
    "at": datetime(2026, 11, 30, 12, 0, tzinfo=UTC),
    "counts": {1: "one", 2: "two"},
}


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    shop.SEEN.clear()


@pytest.mark.django_db(transaction=True)
def test_arguments_arrive_as_on_a_real_worker() -> None:
    plain = {"text": "a", "list": [1, 2.5, None], "object": {"b": True}}
    calls = [
        (shop.typed, FITTING),
        *((shop.typed, {name: value}) for name, value in FITTING.items()),
        (shop.types_of, plain),
        (shop.untyped, {"value": [1, 2]}),
        (shop.enqueue_more, {"depth": 1}),
    ]

    here = outcomes([enqueue(*call).job_id for call in calls], run_jobs)
    with worker("default", "-c", "1"), relay():
        there = outcomes([enqueue(*call).job_id for call in calls], wait_for_all)

    assert here == there
    assert here[0] == ("succeeded", [f"{type(v).__name__} {v}" for v in FITTING.values()], "")


def outcomes(ids: list[UUID], run: Callable[[], object]) -> list[tuple[str, Any, str]]:
    run()
    jobs = Job.objects.in_bulk(ids)
    return [(jobs[i].state, jobs[i].result, jobs[i].error_type) for i in ids]


def wait_for_all() -> None:
    terminal = ["succeeded", "failed", "cancelled"]
    wait_until(lambda: not Job.objects.exclude(state__in=terminal).exists(), within_s=60)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "value", [ORDER, date(2026, 11, 30), {1: "one"}, {"deep": {2: 3}}, (1, 2), {1}, object()]
)
def test_what_json_cannot_hold_is_refused_like_in_production(value: Any) -> None:
    with pytest.raises(InvalidPayload, match=r"\$\.value.*annotate the parameter"):
        shop.untyped.delay(value)
    assert not Job.objects.exists()


@pytest.mark.django_db
def test_a_model_instance_is_refused_with_the_hint_to_send_its_key() -> None:
    group = Group.objects.create(name="staff")
    with pytest.raises(InvalidPayload, match="primary key"):
        shop.with_a_model.delay(group)
    with pytest.raises(InvalidPayload, match="Group is not a JSON type"):
        shop.untyped.delay(group)


class TestInsideATestCase(TestCase):
    """A transaction that never commits."""

    def test_jobs_run_and_are_returned(self) -> None:
        shop.add.delay(1, 2)
        [job] = run_jobs()
        assert (job.state, job.result, job.attempts) == ("succeeded", 3, 1)
        assert Attempt.objects.get(job=job).outcome == "succeeded"

    def test_a_failed_statement_fails_the_job_and_not_the_test(self) -> None:
        shop.spoil_the_transaction.delay()
        shop.spoil_the_transaction.delay(snooze=True)
        shop.note.delay("after")
        failed, snoozed, after = run_jobs()
        assert (failed.state, failed.error_type) == ("failed", "django.db.utils.IntegrityError")
        assert (snoozed.state, after.state) == ("queued", "succeeded")


@pytest.mark.django_db
def test_jobs_run_by_priority_then_in_order_with_what_they_enqueue(run_jobs: RunJobs) -> None:
    for text, priority in [("low", -5), ("first", 0), ("second", 0), ("high", 9)]:
        shop.note.apply_async((text,), priority=priority)
    shop.enqueue_more.delay(2)
    jobs = run_jobs()
    assert shop.SEEN == ["high", "first", "second", "low"]
    assert [job.task.rpartition(".")[2] for job in jobs] == [
        "note", "note", "note", "enqueue_more", "enqueue_more", "enqueue_more", "note",
    ]  # fmt: skip
    assert run_jobs() == []


@pytest.mark.django_db
def test_what_is_due_later_waits_unless_asked_for(run_jobs: RunJobs) -> None:
    shop.note.apply_async(("in an hour",), countdown=3600)
    shop.note.apply_async(("tomorrow",), countdown=86_400)
    assert run_jobs() == []
    assert [job.result for job in run_jobs(until=timedelta(hours=2))] == ["in an hour"]
    assert [job.result for job in run_jobs(include_scheduled=True)] == ["tomorrow"]


@pytest.mark.django_db
def test_a_retry_with_a_delay_is_returned_as_queued(run_jobs: RunJobs) -> None:
    shop.retry_by_hand.delay(countdown=60)
    [job] = run_jobs()
    assert (job.state, job.attempts) == ("queued", 1)
    assert job.error_type == "tests.sample_shop.tasks.Unavailable"
    [job] = run_jobs(include_scheduled=True)
    assert (job.state, job.result, job.attempts) == ("succeeded", "retries: 1", 2)


@pytest.mark.django_db
def test_an_expired_or_cancelled_job_does_not_run(run_jobs: RunJobs) -> None:
    shop.note.apply_async(("expired",), expires=-1)
    shop.note.delay("revoked").revoke()
    assert run_jobs() == []
    assert set(Job.objects.values_list("state", flat=True)) == {"failed", "cancelled"}


@pytest.mark.django_db
def test_jobs_that_enqueue_each_other_for_ever_are_stopped(run_jobs: RunJobs) -> None:
    shop.without_end.delay()
    with pytest.raises(
        RuntimeError, match=r"after 20 runs:\n  20 x tests.sample_shop.tasks.without_end"
    ):
        run_jobs(limit=20)


@pytest.mark.django_db
def test_assert_enqueued_finds_a_job_by_part_of_its_payload() -> None:
    shop.typed.delay(order=ORDER, day=date(2026, 1, 1))
    assert assert_enqueued(shop.typed, order=ORDER).payload == {
        "order": str(ORDER),
        "day": "2026-01-01",
    }


@pytest.mark.django_db
def test_assert_enqueued_tells_what_is_enqueued_instead_and_hides_secrets() -> None:
    with pytest.raises(AssertionError, match="nothing is enqueued"):
        assert_enqueued(shop.add, x=1)
    shop.charge.delay(7, "4111")
    shop.add.delay(1, 2)
    with pytest.raises(AssertionError) as failure:
        assert_enqueued(shop.add, x=1, y=3)
    assert str(failure.value).splitlines() == [
        "not enqueued: tests.sample_shop.tasks.add(x=1, y=3)",
        "enqueued are:",
        '  tests.sample_shop.tasks.add({"x":1,"y":2})  differs in: y',
        '  tests.sample_shop.tasks.charge({"order_id":7,"card":"••••"})',
    ]
    assert json.dumps("4111") not in str(failure.value)


def test_the_fixture_comes_with_the_documented_plugin(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["tasks.testing"]\n')
    (tmp_path / "test_it.py").write_text("def test_it(run_jobs): assert callable(run_jobs)\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--rootdir", str(tmp_path), str(tmp_path)],
        env={**environment(), "DJANGO_SETTINGS_MODULE": "tests.settings"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "1 passed" in done.stdout, done.stdout + done.stderr
