"""Bodies that do what no body should: one outcome each, and the next job on that process runs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from tasks.enqueue import enqueue
from tasks.models import Job
from tasks.testing import run_jobs
from tests import ledger_tasks, misbehaving_tasks
from tests.broker import Corner, Trace, trace_table
from tests.processes import relay, wait_until, worker

TASKS = ("-I", "tests.misbehaving_tasks,tests.ledger_tasks")
# What is left of each: its state, its failure, and how many of its runs ended by themselves.
OUTCOMES = {
    "search_path": ("succeeded", "", 1),
    "read_only": ("succeeded", "", 1),
    "role": ("succeeded", "", 1),
    "closed": ("succeeded", "", 1),
    "atomic": ("failed", "error", 1),
    "autocommit": ("failed", "error", 1),
    "ignore_nul": ("cancelled", "", 1),
    "ignore_surrogate": ("cancelled", "", 1),
    "cancelled_nul": ("cancelled", "", 1),
    "exit": ("failed", "error", 1),
    "exit_quietly": ("failed", "error", 1),
    "async_cancelled": ("failed", "error", 1),
}

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


def test_each_has_one_outcome_and_the_process_goes_on(corner: Corner, trace: Trace) -> None:
    with worker("default", *TASKS, "-c", "1", env=corner.env), relay(env=corner.env):
        for how, outcome in OUTCOMES.items():
            job_id = enqueue(misbehaving_tasks.misbehaves, {"how": how}).job_id
            next_id = enqueue(ledger_tasks.trace, {"note": f"after {how}"}).job_id
            wait_until(
                lambda ids=(job_id, next_id): (
                    not Job.objects.filter(id__in=ids, finished_at=None).exists()
                ),
                within_s=12,
                what=how,
            )
            job = Job.objects.get(id=job_id)
            assert (job.state, job.failure, job.attempts) == outcome, how
            assert job.crashes == 0, how
    ran = [note for note in trace.notes if not note.startswith("after")]
    assert ran == list(OUTCOMES)
    assert len(trace.notes) == 2 * len(OUTCOMES)


def test_an_atomic_body_that_closes_its_connection_is_a_failed_attempt(
    corner: Corner, trace: Trace
) -> None:
    with worker("default", *TASKS, "-c", "1", env=corner.env), relay(env=corner.env):
        job_id = enqueue(misbehaving_tasks.closes_its_transaction, {}).job_id
        wait_until(lambda: Job.objects.get(id=job_id).finished_at, within_s=12)
    job = Job.objects.get(id=job_id)
    assert (job.state, job.failure, job.attempts, job.crashes) == ("failed", "error", 1, 0)
    assert trace.notes == []


@pytest.mark.parametrize("kind", ["snooze", "retry"])
@pytest.mark.parametrize("seconds", ["nan", "inf", "1e12", "-1e9", "-inf"])
def test_a_delay_out_of_all_bounds_stays_a_date_that_can_be_read(kind: str, seconds: str) -> None:
    enqueue(misbehaving_tasks.delays, {"kind": kind, "seconds": seconds})
    run_jobs(limit=5)
    job = Job.objects.get()
    assert job.run_at < datetime.now(UTC) + timedelta(days=366)


def test_what_is_sensitive_stays_out_of_errors_and_logs(corner: Corner, trace: Trace) -> None:
    with worker("default", *TASKS, "-c", "1", env=corner.env) as process, relay(env=corner.env):
        payload = {"card": "4242-4242", "owner": {"name": "Ada Lovelace"}}
        job_id = enqueue(misbehaving_tasks.declined, payload).job_id
        wait_until(lambda: Job.objects.get(id=job_id).finished_at, within_s=12)
        job = Job.objects.get(id=job_id)
        for text in (job.error_message, job.error_traceback, process.log):
            assert "declined" in text
            assert "4242-4242" not in text
            assert "Lovelace" not in text
