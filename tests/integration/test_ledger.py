"""The state machine: what the whitelist allows happens, everything else is answered with no."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import IntegrityError, connection, transaction

from tasks import accept, ledger, sql
from tasks.enqueue import enqueue
from tasks.ledger import Dispatched, ErrorReport
from tasks.models import Attempt, Job, OperatorAction
from tasks.states import TERMINAL, TRANSITIONS, Failure, State
from tests.ledger_tasks import trace
from tests.processes import wait_until

pytestmark = pytest.mark.django_db
ERROR = ErrorReport.of("ValueError", "no", "traceback")


def job_in(state: State) -> Job:
    """A job that went its way to this state through the ledger."""
    job_id = enqueue(trace, {"note": "x"}).job_id
    if state != State.QUEUED:
        number = ledger.dispatch_here(job_id)
        if state != State.DISPATCHED:
            claim = ledger.claim(job_id, number, worker="w", release="r1", lease_s=15)
            assert claim
            ending[state](job_id, claim.fence)
    return Job.objects.get(id=job_id)


def keep_running(job_id: UUID, fence: int) -> bool:
    return True


def succeed(job_id: UUID, fence: int) -> bool:
    return ledger.succeed(job_id, fence, result='"done"')


def fail(job_id: UUID, fence: int) -> bool:
    return ledger.fail(job_id, fence, failure=Failure.ERROR, error=ERROR)


def end_cancelled(job_id: UUID, fence: int) -> bool:
    return ledger.end_cancelled(job_id, fence, reason="stop")


ending: dict[State, Callable[[UUID, int], bool]] = {
    State.RUNNING: keep_running,
    State.SUCCEEDED: succeed,
    State.FAILED: fail,
    State.CANCELLED: end_cancelled,
}


def of(job: Job) -> Dispatched:
    return Dispatched(job.id, job.task, job.dispatch_no)


# Every writer of the ledger that changes the state of one job, called with what fits the job.
WRITERS: dict[str, Callable[[Job], Any]] = {
    "dispatch": lambda job: ledger.dispatch(job.queue, 10),
    "dispatch_here": lambda job: ledger.dispatch_here(job.id),
    "dispatch_again": lambda job: ledger.dispatch_again(job.queue, -1.0, 10),
    "undispatch": lambda job: ledger.undispatch([of(job)]),
    "hold_unknown": lambda job: ledger.hold_unknown(job.id, job.dispatch_no),
    "hold_unread": lambda job: ledger.hold_unread(
        job.id, job.dispatch_no, release="r", problem="no"
    ),
    "hold_incompatible": lambda job: ledger.hold_incompatible(job.id, job.fence, problem="no"),
    "expire": lambda _: ledger.expire(10),
    "claim": lambda job: ledger.claim(job.id, job.dispatch_no, worker="", release="", lease_s=9),
    "succeed": lambda job: succeed(job.id, job.fence),
    "retry": lambda job: ledger.retry(job.id, job.fence, delay_s=5, error=ERROR),
    "fail": lambda job: fail(job.id, job.fence),
    "end_cancelled": lambda job: end_cancelled(job.id, job.fence),
    "give_back": lambda job: ledger.give_back(job.id, job.fence),
    "crash": lambda job: ledger.crash(job.id, job.fence, max_crashes=3, reason="gone"),
    "cancel": lambda job: ledger.cancel(job.id, actor="ann", reason="why"),
    "replay": lambda job: ledger.replay(job.id, actor="ann", reason="why"),
}


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("writer", list(WRITERS))
def test_no_writer_leaves_the_whitelist_and_each_says_whether_it_happened(
    writer: str, state: State
) -> None:
    before = job_in(state)
    happened = bool(WRITERS[writer](before))
    after = Job.objects.get(id=before.id)
    changed = (after.state, after.dispatch_no, after.fence, after.cancel_requested_at) != (
        before.state, before.dispatch_no, before.fence, before.cancel_requested_at,
    )  # fmt: skip
    assert happened == changed
    if after.state != before.state:
        assert State(after.state) in TRANSITIONS[state]
    if state in TERMINAL and not TRANSITIONS[state]:
        assert not changed


def test_a_claim_takes_one_dispatch_once() -> None:
    job = job_in(State.DISPATCHED)
    first = ledger.claim(job.id, job.dispatch_no, worker="a", release="", lease_s=15)
    assert first
    assert first.fence == 1
    assert ledger.claim(job.id, job.dispatch_no, worker="b", release="", lease_s=15) is None


def test_a_stale_message_cannot_claim_what_was_dispatched_again() -> None:
    job = job_in(State.DISPATCHED)
    (again,) = ledger.dispatch_again(job.queue, -1.0, 10)
    assert ledger.claim(job.id, job.dispatch_no, worker="", release="", lease_s=15) is None
    assert ledger.claim(job.id, again.dispatch_no, worker="", release="", lease_s=15)


@pytest.mark.parametrize(
    "writer", ["succeed", "retry", "fail", "end_cancelled", "give_back", "hold_incompatible"]
)
def test_a_stale_worker_cannot_finish_a_reclaimed_job(writer: str) -> None:
    stale = job_in(State.RUNNING)
    assert ledger.crash(stale.id, stale.fence, max_crashes=3, reason="lost") == State.QUEUED
    claim = ledger.claim(
        stale.id, ledger.dispatch_here(stale.id), worker="b", release="", lease_s=15
    )
    assert claim
    assert not WRITERS[writer](stale)
    assert Job.objects.get(id=stale.id).state == State.RUNNING
    assert succeed(stale.id, claim.fence)
    assert [a.fence for a in Attempt.objects.filter(job_id=stale.id)] == [claim.fence]


def test_an_attempt_is_recorded_with_its_outcome_worker_and_release() -> None:
    job = job_in(State.SUCCEEDED)
    attempt = Attempt.objects.get(job=job)
    assert (attempt.number, attempt.outcome, attempt.worker, attempt.release) == (
        1, "succeeded", "w", "r1",
    )  # fmt: skip
    assert attempt.started_at <= attempt.finished_at
    assert (job.attempts, job.crashes, job.result) == (1, 0, "done")


def test_a_give_back_costs_nothing() -> None:
    job = job_in(State.RUNNING)
    assert ledger.give_back(job.id, job.fence, delay_s=60)
    job.refresh_from_db()
    assert (job.state, job.attempts, job.crashes, job.due) == (State.QUEUED, 0, 0, False)
    assert not Attempt.objects.exists()


def returned(job: Job, *, ago_s: float) -> None:
    """As if it had first been given back then."""
    since = datetime.now(UTC) - timedelta(seconds=ago_s)
    Job.objects.filter(id=job.id).update(returned_since=since)


def test_a_job_that_comes_back_for_too_long_is_a_dead_letter_and_has_spent_no_attempt() -> None:
    job = job_in(State.RUNNING)
    returned(job, ago_s=61)
    assert ledger.give_back(job.id, job.fence, give_up_after_s=60) == State.FAILED
    job.refresh_from_db()
    assert (job.failure, job.dead_letter, job.error_type) == ("gave_up", True, "GaveUp")
    assert (job.attempts, job.crashes) == (0, 0)


def test_a_job_that_has_come_back_for_less_goes_on_coming_back() -> None:
    job = job_in(State.RUNNING)
    returned(job, ago_s=50)
    assert ledger.give_back(job.id, job.fence, give_up_after_s=60) == State.QUEUED


def test_the_first_give_back_of_a_job_is_free_however_long_it_has_waited() -> None:
    job = job_in(State.RUNNING)
    long_ago = datetime.now(UTC) - timedelta(days=30)
    Job.objects.filter(id=job.id).update(run_at=long_ago, created_at=long_ago)
    assert ledger.give_back(job.id, job.fence, give_up_after_s=60) == State.QUEUED
    assert Job.objects.get(id=job.id).returned_since > datetime.now(UTC) - timedelta(seconds=30)


@pytest.mark.parametrize("writer", ["retry", "replay"])
def test_an_attempt_of_its_own_or_a_replay_starts_the_count_anew(writer: str) -> None:
    job = job_in(State.RUNNING if writer == "retry" else State.FAILED)
    returned(job, ago_s=61)
    assert WRITERS[writer](job)
    assert Job.objects.get(id=job.id).returned_since is None


def test_a_cancel_request_wins_over_giving_up() -> None:
    job = job_in(State.RUNNING)
    returned(job, ago_s=61)
    ledger.cancel(job.id, actor="ann", reason="stop")
    assert ledger.give_back(job.id, job.fence, give_up_after_s=60) == State.CANCELLED


def test_a_job_that_kills_its_process_is_a_dead_letter_after_three_crashes() -> None:
    job_id = job_in(State.QUEUED).id
    states = []
    for _ in range(3):
        claim = ledger.claim(
            job_id, ledger.dispatch_here(job_id), worker="", release="", lease_s=15
        )
        assert claim
        states.append(ledger.crash(job_id, claim.fence, max_crashes=3, reason="signal 9"))
    job = Job.objects.get(id=job_id)
    assert states == [State.QUEUED, State.QUEUED, State.FAILED]
    assert (job.failure, job.dead_letter, job.crashes, job.attempts) == ("poison", True, 3, 0)


def test_irreversible_work_is_ambiguous_after_one_crash() -> None:
    job = job_in(State.RUNNING)
    assert ledger.crash(job.id, job.fence, max_crashes=1, reason="signal 9") == State.FAILED
    assert Job.objects.get(id=job.id).failure == "ambiguous"


@pytest.mark.parametrize("writer", ["retry", "give_back", "crash"])
def test_a_cancel_request_wins_over_going_on(writer: str) -> None:
    job = job_in(State.RUNNING)
    assert ledger.cancel(job.id, actor="ann", reason="stop") == State.RUNNING
    assert WRITERS[writer](job)
    assert Job.objects.get(id=job.id).state == State.CANCELLED


def test_a_body_that_succeeds_first_stays_succeeded() -> None:
    job = job_in(State.RUNNING)
    ledger.cancel(job.id, actor="ann", reason="stop")
    assert succeed(job.id, job.fence)
    assert Job.objects.get(id=job.id).state == State.SUCCEEDED


def test_who_cancelled_and_why_is_recorded_once() -> None:
    job = job_in(State.QUEUED)
    assert ledger.cancel(job.id, actor="ann", reason="not needed") == State.CANCELLED
    assert ledger.cancel(job.id, actor="bob", reason="again") is None
    action = OperatorAction.objects.get(job=job)
    assert (action.action, action.actor, action.reason) == ("cancel", "ann", "not needed")


def test_a_replay_keeps_id_key_and_fence_and_starts_counting_again() -> None:
    job = job_in(State.FAILED)
    error = {"error_type": "Boom", "error_message": "b", "error_traceback": "t"}
    Job.objects.filter(id=job.id).update(**error)
    assert ledger.replay(job.id, actor="ann", reason="fixed")
    after = Job.objects.get(id=job.id)
    assert (after.state, after.attempts, after.fence, after.failure) == (State.QUEUED, 0, 1, "")
    assert (after.error_type, after.error_message, after.error_traceback) == ("", "", "")
    assert after.started_at == job.started_at
    assert after.idempotency_key == job.idempotency_key
    assert after.seq > job.seq
    assert OperatorAction.objects.get(job=job).reason == "fixed"


def test_a_replay_is_refused_when_a_younger_job_owns_the_key() -> None:
    old = job_in(State.FAILED)
    assert accept.free_key(old.id)
    enqueue(trace, {"note": "x"}, key=old.idempotency_key)
    assert not ledger.replay(old.id, actor="ann", reason="fixed")


@pytest.mark.django_db(transaction=True)
def test_a_replay_loses_to_a_younger_job_that_takes_the_key_at_that_moment() -> None:
    old = job_in(State.FAILED)
    assert accept.free_key(old.id)
    with ThreadPoolExecutor(1) as other:
        with transaction.atomic():
            enqueue(trace, {"note": "young"}, key=old.idempotency_key)
            replayed = other.submit(replay_in_a_transaction, old.id)
            wait_until(somebody_waits_for_a_lock, within_s=10)
        assert replayed.result(10) == (False, State.FAILED)


def replay_in_a_transaction(job_id: UUID) -> tuple[bool, str]:
    """The answer, and what the caller's own transaction can still read after it."""
    try:
        with transaction.atomic():
            replayed = ledger.replay(job_id, actor="ann", reason="fixed")
            return replayed, Job.objects.get(id=job_id).state
    finally:
        connection.close()


def somebody_waits_for_a_lock() -> bool:
    return bool(sql.fetch("SELECT 1 FROM pg_locks WHERE NOT granted", []))


def test_a_dismissed_dead_letter_stays_failed() -> None:
    job = job_in(State.FAILED)
    assert ledger.dismiss(job.id, actor="ann", reason="known")
    job.refresh_from_db()
    assert (job.state, job.dead_letter) == (State.FAILED, False)


def test_what_nobody_needs_any_more_expires_before_its_first_start_only() -> None:
    soon = datetime.now(UTC) - timedelta(seconds=1)
    waiting = enqueue(trace, {"note": "x"}, start_by=soon)
    dispatched = enqueue(trace, {"note": "x"}, start_by=soon)
    number = ledger.dispatch_here(dispatched.job_id)
    assert not ledger.claim(dispatched.job_id, number, worker="", release="", lease_s=15)
    started = job_in(State.RUNNING)
    Job.objects.filter(id=started.id).update(start_by=soon)
    ledger.give_back(started.id, started.fence)
    assert {job_id for job_id, _ in ledger.expire(10)} == {waiting.job_id, dispatched.job_id}
    assert Job.objects.get(id=waiting.job_id).failure == "expired"


@pytest.mark.parametrize(
    "impossible",
    [
        "state = 'running'",
        "state = 'succeeded'",
        "state = 'failed', finished_at = now()",
        "state = 'dispatched'",
        "state = 'nowhere'",
        "finished_at = now()",
        "lease_expires_at = now()",
        "dead_letter = true",
        "failure = 'error'",
        "idempotency_key = NULL",
        "priority = 101",
        "hold_reason = 'paused', state = 'dispatched', dispatched_at = now()",
    ],
)
def test_impossible_rows_are_refused_by_the_schema(impossible: str) -> None:
    job = job_in(State.QUEUED)
    with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"UPDATE tasks_job SET {impossible} WHERE id = %s", [job.id])


def test_looking_for_work_never_touches_finished_rows() -> None:
    """Whatever looks for work does so through a partial index, with a million rows of history."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO tasks_job (id, task, queue, idempotency_key, fingerprint, payload, state,"
            " finished_at) SELECT gen_random_uuid(), 't', 'default', n::text, '', '{}',"
            " 'succeeded', now() FROM generate_series(1, 20000) n"
        )
        cursor.execute("ANALYZE tasks_job")
    job_in(State.QUEUED)
    searches: dict[str, Callable[[], Any]] = {
        "tasks_job_due": lambda: ledger.dispatch("default", 10),
        "tasks_job_scheduled": lambda: ledger.stage_due(10),
        "tasks_job_dispatched": lambda: ledger.dispatch_again("default", 30, 10),
        "tasks_job_start_by": lambda: ledger.expire(10),
        "tasks_job_running": lambda: ledger.in_flight(["default"]),
    }
    for index, search in searches.items():
        plan = plan_of(search)
        assert index in plan, plan
        assert "Seq Scan on tasks_job" not in plan, plan


@pytest.mark.parametrize("analysed", [False, True])
def test_a_job_named_by_its_id_is_found_by_its_id(analysed: bool) -> None:
    """Not by the index of its state, through all that is in there."""
    if analysed:  # while nothing was dispatched or running: the planner takes those for none
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE tasks_job")
    for _ in range(100):
        job_in(State.DISPATCHED)
        job_in(State.RUNNING)
    job = job_in(State.DISPATCHED)
    error = ErrorReport.of("ValueError", "no")
    mine, sent = (job.id, job.fence + 1), Dispatched(job.id, job.task, job.dispatch_no)
    changes: list[Callable[[], Any]] = [
        lambda: ledger.undispatch([sent]),
        lambda: ledger.hold_unknown(job.id, job.dispatch_no),
        lambda: ledger.dispatch_here(job.id),
        lambda: ledger.claim(job.id, job.dispatch_no, worker="w", release="r", lease_s=10),
        lambda: ledger.renew([(job.id, job.dispatch_no, 10.0)]),
        lambda: ledger.fence_of_dispatch(job.id, job.dispatch_no),
        lambda: ledger.checkpoint(*mine, "1"),
        lambda: ledger.emit(*mine, 1, "1"),
        lambda: ledger.begin_step(*mine, "s"),
        lambda: ledger.retry(*mine, delay_s=1, error=error),
        lambda: ledger.give_back(*mine, delay_s=0, give_up_after_s=60),
        lambda: ledger.end_cancelled(*mine),
        lambda: ledger.crash(*mine, max_crashes=3, reason="gone"),
        lambda: ledger.succeed(*mine, result="1"),
    ]
    for change in changes:
        plan = plan_of(change)
        assert "tasks_job_pkey" in plan, plan
        assert "tasks_job_dispatched" not in plan, plan
        assert "tasks_job_running" not in plan, plan


def plan_of(search: Callable[[], Any]) -> str:
    """EXPLAIN of the statement that ``search`` sends."""
    with connection.execute_wrapper(explain := Explain()):
        search()
    return explain.plan


class Explain:
    def __init__(self) -> None:
        self.plan = ""

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        result = execute(f"EXPLAIN {sql}", params, many, context)
        self.plan = "\n".join(row[0] for row in context["cursor"].fetchall())
        context["cursor"].cursor.execute(sql, params)
        return result


def test_a_mark_that_a_crash_undid_is_made_again_and_of_its_two_messages_one_runs() -> None:
    """The relay does not wait for the disk: the message may outlive what the ledger knows of it."""
    job_id = enqueue(trace, {"note": "x"}).job_id
    lost = ledger.dispatch_here(job_id)
    Job.objects.filter(id=job_id).update(
        state=State.QUEUED, dispatch_no=lost - 1, dispatched_at=None
    )
    assert ledger.claim(job_id, lost, worker="w", release="", lease_s=15) is None
    again = ledger.dispatch_here(job_id)
    claims = [
        ledger.claim(job_id, number, worker="w", release="", lease_s=15) for number in (lost, again)
    ]
    assert [claim is not None for claim in claims] == [True, False]
