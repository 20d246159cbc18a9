"""Celery's retries: the task decides, the ledger waits."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery.exceptions import MaxRetriesExceededError, Retry
from pytest_django.fixtures import Settings

from tasks.enqueue import enqueue
from tasks.models import Attempt, Job
from tasks.testing import run_jobs
from tasks.topology import Queue, Topology
from tests.habits import habit
from tests.ledger_tasks import snoozes_for_ever
from tests.sample_shop import tasks as shop

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    shop.SEEN.clear()


def delay_of(job: Job) -> timedelta:
    return job.run_at - datetime.now(UTC)


@habit("self.retry")
@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        (lambda _: {"countdown": 60}, 60),
        (lambda _: {"countdown": 0}, 0),
        (lambda _: {}, 180),
        (lambda now: {"eta": now + timedelta(hours=1)}, 3600),
        (lambda now: {"eta": now.replace(tzinfo=None) + timedelta(hours=1)}, 3600),
    ],
)
def test_a_retry_waits_in_the_ledger(
    options: Callable[[datetime], dict[str, Any]], seconds: float
) -> None:
    result = shop.retry_by_hand.delay(**options(datetime.now(UTC)))
    run_jobs()
    job = Job.objects.get(id=result.id)
    if seconds:
        assert abs(delay_of(job) - timedelta(seconds=seconds)) < timedelta(seconds=30)
        assert (result.status, str(result.result)) == ("RETRY", "first")
    [job] = run_jobs(include_scheduled=True) or [job]
    assert (job.state, job.result, job.attempts) == ("succeeded", "retries: 1", 2)
    outcomes = Attempt.objects.filter(job=job).order_by("fence").values_list("outcome", flat=True)
    assert list(outcomes) == ["retry", "succeeded"]


@habit("self.retry")
@pytest.mark.parametrize(
    ("exc", "error"),
    [
        (True, "tests.sample_shop.tasks.Unavailable"),
        (False, "celery.exceptions.MaxRetriesExceededError"),
    ],
)
def test_after_the_last_retry_the_job_is_a_dead_letter_with_the_given_error(
    exc: bool, error: str
) -> None:
    result = shop.retry_for_ever.delay(exc=exc, countdown=5)
    [job] = run_jobs(include_scheduled=True)
    assert (job.state, job.failure, job.dead_letter) == ("failed", "exhausted", True)
    assert (job.attempts, job.error_type) == (2, error)
    assert result.status == "FAILURE"
    with pytest.raises((shop.Unavailable, MaxRetriesExceededError)):
        result.get()


@habit("self.retry(throw=False)")
def test_a_retry_that_does_not_throw_lets_the_body_go_on_and_drops_its_result() -> None:
    shop.retry_by_hand.delay(throw=False)
    [job] = run_jobs(include_scheduled=True)
    assert shop.SEEN == ["after retry"]
    assert (job.result, job.attempts) == ("retries: 1", 2)


@habit("self.retry(throw=False)")
def test_an_error_after_a_retry_was_asked_for_does_not_take_it_back() -> None:
    shop.retry_then_raise.delay()
    [job] = run_jobs()
    assert (job.state, job.result, job.attempts) == ("succeeded", "second", 2)


@habit("self.retry(max_retries=)")
def test_max_retries_of_the_call_wins_over_that_of_the_task() -> None:
    shop.retry_for_ever.delay(max_retries=3, countdown=0)
    [job] = run_jobs()
    assert job.attempts == 4


@habit("self.retry(args=)")
@pytest.mark.parametrize("options", [{"args": [1]}, {"kwargs": {"x": 1}}, {"queue": "bulk"}])
def test_a_retry_with_other_arguments_or_options_is_refused(options: dict[str, Any]) -> None:
    shop.retry_for_ever.delay(**options)
    [job] = run_jobs()
    assert (job.state, job.error_type) == ("failed", "builtins.TypeError")
    assert "enqueue another one" in job.error_message


@habit("self.retry")
def test_outside_a_job_a_retry_raises_as_in_celery() -> None:
    with pytest.raises(shop.Unavailable):
        shop.retry_for_ever()
    with pytest.raises(Retry):
        shop.retry_for_ever(exc=False)


@habit("autoretry_for", "retry_backoff", "max_retries=None")
def test_autoretry_backs_off_up_to_the_maximum_and_without_end() -> None:
    shop.retry_by_itself.delay()
    delays = []
    for _ in range(4):
        [job] = run_jobs(include_scheduled=False) or run_first_scheduled()
        delays.append(round(delay_of(job).total_seconds()))
    assert delays == [10, 20, 25, 25]
    assert (job.state, job.attempts) == ("queued", 4)


def run_first_scheduled() -> list[Job]:
    """Once: everything that is scheduled would never end."""
    Job.objects.update(run_at=datetime.now(UTC) - timedelta(seconds=1))
    return run_jobs()


@habit("retry_jitter")
def test_jitter_draws_the_delay_anew() -> None:
    for _ in range(12):
        shop.jittered.delay()
    delays = {round(delay_of(job).total_seconds()) for job in run_jobs()}
    assert len(delays) > 3
    assert max(delays) <= 1000


def test_a_body_that_snoozes_for_ever_is_given_up_some_day(settings: Settings) -> None:
    settings.TASKS_TOPOLOGY = Topology.of([Queue("default", give_up_after=timedelta())])
    job_id = enqueue(snoozes_for_ever, {}).job_id
    run_jobs()
    assert Job.objects.get(id=job_id).state == "queued"
    run_first_scheduled()
    job = Job.objects.get(id=job_id)
    assert (job.state, job.failure, job.attempts) == ("failed", "gave_up", 0)


@habit("dont_autoretry_for")
def test_what_is_excluded_from_autoretry_fails_at_once() -> None:
    shop.retry_by_itself.delay(expected=True)
    [job] = run_jobs()
    assert (job.state, job.failure, job.attempts) == ("failed", "error", 1)


@habit("max_retries")
def test_max_retries_of_three_means_four_runs() -> None:
    shop.import_row.delay("6ec0bd7f-11c0-43da-975e-2a8ad9ebae0b", "retry")
    [job] = run_jobs(include_scheduled=True)
    assert (job.state, job.attempts, shop.import_row.max_retries) == ("failed", 5, 4)
