"""Changes of many jobs at once: each is conditional, and none depends on statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.db import connection
from django.db.models import F

from tasks import batch_ledger, grouping, ledger
from tasks.batch_ledger import Success
from tasks.enqueue import enqueue_many
from tasks.ledger import Claim, Dispatched
from tasks.models import Attempt, Job
from tasks.states import Failure
from tests.integration.test_ledger import plan_of
from tests.ledger_tasks import trace
from tests.processes import database_url

pytestmark = pytest.mark.django_db


def dispatched(number: int = 5) -> list[Dispatched]:
    enqueue_many(trace, [{"note": str(n)} for n in range(number)])
    return ledger.dispatch("default", number)


def named(jobs: Sequence[Dispatched]) -> list[tuple[UUID, int]]:
    return [(job.id, job.dispatch_no) for job in jobs]


def claim(jobs: Sequence[Dispatched]) -> list[Claim]:
    return batch_ledger.claim(named(jobs), worker="w", release="r", lease_s=15.0)


def fences(claims: Sequence[Claim]) -> list[tuple[UUID, int]]:
    return [(one.id, one.fence) for one in claims]


def success(claim: Claim, **values: Any) -> Success:
    return Success(claim.id, claim.fence, "null", **values)


def test_a_batch_is_claimed_once() -> None:
    jobs = dispatched()
    assert {one.id for one in claim(jobs)} == {job.id for job in jobs}
    assert claim(jobs) == []
    assert set(Job.objects.values_list("state", "fence", "batched")) == {("running", 1, True)}


def test_stale_jobs_of_a_message_are_left_out() -> None:
    jobs = dispatched()
    ledger.undispatch(jobs[:1])
    ledger.cancel(jobs[1].id, actor="test")
    ledger.claim(jobs[2].id, jobs[2].dispatch_no, worker="other", release="r", lease_s=15)
    again = Dispatched(jobs[3].id, jobs[3].task, jobs[3].dispatch_no + 1)
    assert [one.id for one in claim([*jobs[:3], again, jobs[4]])] == [jobs[4].id]


def test_a_claim_tells_what_that_of_one_job_tells() -> None:
    one, other = dispatched(2)
    [together] = claim([one])
    alone = ledger.claim(other.id, other.dispatch_no, worker="w", release="r", lease_s=15)
    assert alone
    differ = {"id": None, "key": None, "payload": None, "waited_s": None}
    assert {**vars(together), **differ} == {**vars(alone), **differ}
    assert together.payload == {"note": "0"}


def test_only_runs_that_own_their_jobs_succeed() -> None:
    claims = claim(dispatched())
    ledger.give_back(claims[0].id, claims[0].fence)
    happened = batch_ledger.succeed([success(one) for one in claims])
    assert happened == {one.id for one in claims[1:]}
    assert batch_ledger.succeed([success(one) for one in claims]) == set()
    assert Attempt.objects.count() == 4
    assert Job.objects.get(id=claims[0].id).state == "queued"


def test_each_success_has_its_own_result_note_and_time() -> None:
    first, second = claim(dispatched(2))
    Job.objects.update(claimed_at=F("claimed_at") - timedelta(seconds=9))
    batch_ledger.succeed(
        [
            Success(first.id, first.fence, '{"a": "\\u00e4"}', "", 3.0, 2.5),
            Success(second.id, second.fence, "[1]", "cut", 2.5, 0.5),
        ]
    )
    one, other = Job.objects.get(id=first.id), Job.objects.get(id=second.id)
    assert (one.result, one.result_note, other.result, other.result_note) == (
        {"a": "ä"}, "", [1], "cut",
    )  # fmt: skip
    taken = {
        a.job_id: (a.finished_at - a.started_at).total_seconds() for a in Attempt.objects.all()
    }
    assert taken == {first.id: pytest.approx(0.5, abs=0.2), second.id: pytest.approx(2, abs=0.2)}


def test_what_has_not_started_is_as_if_nothing_had_been() -> None:
    jobs = dispatched()
    claims = claim(jobs)
    ledger.cancel(claims[0].id, actor="test")
    assert batch_ledger.give_back(fences(claims)) == {
        one.id: "queued" if number else "cancelled" for number, one in enumerate(claims)
    }
    assert Job.objects.get(id=claims[0].id).state == "cancelled"
    others = Job.objects.exclude(id=claims[0].id)
    assert set(others.values_list("state", "attempts", "crashes", "started_at")) == {
        ("queued", 0, 0, None)
    }
    assert batch_ledger.give_back(fences(claims)) == {}
    assert [job.is_alone for job in ledger.dispatch("default", 10)] == [True] * 4


def test_a_crash_among_others_is_no_sign_of_poison() -> None:
    for crashes in (1, 2, 3, 4, 5):
        jobs = ledger.dispatch("default", 1) or dispatched(1)
        claim(jobs)
        batch_ledger.crash(named(jobs), reason="killed")
        job = Job.objects.get()
        assert (job.state, job.crashes, job.crashes_in_batch) == ("queued", crashes, crashes)
    [again] = ledger.dispatch("default", 1)
    assert again.is_alone


def test_a_rescued_batch_is_no_sign_of_poison_either() -> None:
    """Whoever finds an expired lease cannot know which job of the batch was running."""
    [one] = claim(dispatched(1))
    assert ledger.crash(one.id, one.fence, max_crashes=1, reason="expired") == "queued"
    for left in (2, 1, 0):
        [job] = ledger.dispatch("default", 1)
        alone = ledger.claim(job.id, job.dispatch_no, worker="w", release="r", lease_s=15)
        assert alone
        state = ledger.crash(alone.id, alone.fence, max_crashes=3, reason="killed")
        assert state == ("queued" if left else "failed")


def test_a_replayed_job_begins_anew() -> None:
    [one] = claim(dispatched(1))
    batch_ledger.crash([(one.id, one.dispatch_no)], reason="killed")
    [job] = ledger.dispatch("default", 1)
    alone = ledger.claim(job.id, job.dispatch_no, worker="w", release="r", lease_s=15)
    assert alone
    assert ledger.crash(alone.id, alone.fence, max_crashes=1, reason="killed") == "failed"
    assert ledger.replay(one.id, actor="test", reason="again")
    replayed = Job.objects.get()
    assert (replayed.crashes, replayed.crashes_in_batch) == (0, 0)


def test_those_that_somebody_cancels_are_found() -> None:
    claims = claim(dispatched())
    ledger.cancel(claims[2].id, actor="test")
    assert batch_ledger.cancelled_among(fences(claims)) == {claims[2].id}


@pytest.mark.django_db(transaction=True)
def test_a_locked_job_does_not_keep_the_others_waiting() -> None:
    jobs = dispatched()
    with psycopg.connect(database_url()) as other:
        other.execute("SELECT FROM tasks_job WHERE id = %s FOR UPDATE", [jobs[0].id])
        assert {one.id for one in claim(jobs)} == {job.id for job in jobs[1:]}
        other.rollback()


def test_the_mean_of_a_task_is_that_of_its_latest_bodies() -> None:
    claims = claim(dispatched(2))
    Job.objects.update(claimed_at=F("claimed_at") - timedelta(seconds=9))
    batch_ledger.succeed([success(one, began_ago_s=0.4, ended_ago_s=0.2) for one in claims])
    assert grouping.measured(["default"]) == {"default": {trace.name: pytest.approx(0.2, abs=0.05)}}
    assert grouping.measured(["other"]) == {}


def test_bodies_that_fail_count_too() -> None:
    """Else a task that hangs now and then, and fails, would keep its large messages."""
    quick, retried, failed = claim(dispatched(3))
    batch_ledger.succeed([success(quick, began_ago_s=0.1, ended_ago_s=0.1)])
    Job.objects.update(claimed_at=F("claimed_at") - timedelta(seconds=9))
    error = ledger.ErrorReport.of("E", "it hung")
    ledger.retry(retried.id, retried.fence, delay_s=0, error=error)
    ledger.fail(failed.id, failed.fence, failure=Failure.TIME_LIMIT, error=error)
    assert grouping.measured(["default"])["default"][trace.name] == pytest.approx(6, abs=0.5)


STATEMENTS: dict[str, Callable[[list[tuple[UUID, int]]], Any]] = {
    "claim": lambda jobs: batch_ledger.claim(jobs, worker="w", release="r", lease_s=15.0),
    "succeed": lambda jobs: batch_ledger.succeed([Success(*job, "null") for job in jobs]),
    "give back": batch_ledger.give_back,
    "crash": lambda jobs: batch_ledger.crash(jobs, reason="r"),
    "cancelled": batch_ledger.cancelled_among,
    "measured": lambda _: grouping.measured(["default"]),
}


@pytest.mark.parametrize("analysed", [False, True])
@pytest.mark.parametrize("name", STATEMENTS)
def test_rows_are_found_by_their_ids_whatever_is_known_of_the_table(
    name: str, analysed: bool
) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO tasks_job (id, task, queue, tenant, idempotency_key, fingerprint, payload,"
            " state, finished_at) SELECT gen_random_uuid(), 't', 'q', '', n::text, '', '{}',"
            " 'succeeded', now() FROM generate_series(1, 20000) n"
        )
        if analysed:
            cursor.execute("ANALYZE tasks_job")
    jobs = named(dispatched(50))
    plan = plan_of(lambda: STATEMENTS[name](jobs))
    assert "Seq Scan on tasks_job" not in plan, plan
    assert "tasks_job_pkey" in plan, plan
    # The index of a state also holds what has lately been in that state.
    assert "tasks_job_dispatched" not in plan, plan
    assert "tasks_job_running" not in plan, plan
