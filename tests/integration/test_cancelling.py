"""Cancelling many at once, and what a locked row or a late hook must not do."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from io import StringIO
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import psycopg
import pytest
from celery.exceptions import TimeLimitExceeded
from django.core.management import CommandError, call_command
from django.db import DatabaseError

from tasks import interrupt, ledger, operate, settle, sql
from tasks.errors import Cancelled, Draining, Interrupted, Rejected
from tasks.interrupt import Watch
from tasks.lease import Held, Renewer
from tasks.ledger import CancelledMany, Selection
from tasks.models import Job, OperatorAction
from tasks.run import NO_RUN, Run
from tasks.states import Hold, State
from tests import ledger_tasks  # noqa: F401  (registers them)
from tests.broker import execute
from tests.callers import api_client, person
from tests.job_rows import job_row
from tests.processes import database_url

pytestmark = pytest.mark.django_db

FINISHED = (State.SUCCEEDED, State.FAILED, State.CANCELLED)


def cancel_matching(selection: Selection, *, batches: int = 10) -> tuple[CancelledMany, bool]:
    return operate.cancel_matching(selection, actor="ann", reason="not needed", batches=batches)


def states() -> dict[UUID, str]:
    return dict(Job.objects.values_list("id", "state"))


def unfinished() -> dict[str, Job]:
    """One job in each place where it can wait, and one that runs."""
    later = datetime.now(UTC) + timedelta(hours=1)
    return {
        "due": job_row(State.QUEUED),
        "in a retry pause": job_row(State.QUEUED, due=False, run_at=later, attempts=1),
        "held": job_row(State.QUEUED, hold_reason=Hold.TASK_UNKNOWN),
        "held for later": job_row(State.QUEUED, hold_reason=Hold.TASK_UNKNOWN, due=False),
        "dispatched": job_row(State.DISPATCHED),
        "running": job_row(State.RUNNING),
    }


# --- many at once ------------------------------------------------------------------------


def test_all_that_match_are_cancelled_wherever_they_wait_with_who_and_why() -> None:
    mine, finished = unfinished(), [job_row(state) for state in FINISHED]
    other = job_row(State.QUEUED, task="t.other")
    done, more = cancel_matching(Selection(task="t.trace"))
    assert (done, more) == (CancelledMany(cancelled=5, asked=1), False)
    found = states()
    assert {name: found[job.id] for name, job in mine.items()} == {
        name: "running" if name == "running" else "cancelled" for name in mine
    }
    assert [found[job.id] for job in finished] == list(FINISHED)
    assert found[other.id] == State.QUEUED
    actions = OperatorAction.objects.all()
    assert {action.job_id for action in actions} == {job.id for job in mine.values()}
    assert {(a.action, a.actor, a.reason) for a in actions} == {("cancel", "ann", "not needed")}


def test_a_job_that_was_asked_to_stop_is_not_asked_again_and_keeps_the_first_reason() -> None:
    job = job_row(State.RUNNING)
    ledger.cancel(job.id, actor="bob", reason="first")
    assert cancel_matching(Selection(task="t.trace")) == (CancelledMany(), False)
    ledger.cancel(job.id, actor="ann", reason="second")
    job.refresh_from_db()
    assert job.cancel_reason == "first"


@pytest.mark.parametrize(
    "selection",
    [
        Selection(queue="bulk"),
        Selection(tenant="acme"),
        Selection(ordering_key="a"),
        Selection(task="t.trace", state="dispatched"),
        Selection(task="t.trace", created_before=datetime.now(UTC) - timedelta(minutes=1)),
    ],
    ids=["queue", "tenant", "ordering key", "state", "created before"],
)
def test_each_part_of_a_selection_narrows_it(selection: Selection) -> None:
    mine = job_row(
        State.DISPATCHED, age_s=120, queue="bulk", tenant="acme", ordering_key="a"
    )  # fmt: skip
    other = job_row(State.QUEUED)
    assert cancel_matching(selection) == (CancelledMany(cancelled=1), False)
    assert states() == {mine.id: "cancelled", other.id: "queued"}


def test_more_than_fits_is_said_and_the_next_call_takes_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(operate, "BATCH", 3)
    for _ in range(8):
        job_row(State.QUEUED)
    selection = Selection(task="t.trace")
    assert cancel_matching(selection, batches=2) == (CancelledMany(cancelled=6), True)
    assert cancel_matching(selection, batches=2) == (CancelledMany(cancelled=2), False)


@pytest.mark.django_db(transaction=True)
def test_locked_rows_are_waited_for_by_nobody_and_said_to_be_left() -> None:
    locked, free = job_row(State.DISPATCHED), job_row(State.QUEUED)
    with psycopg.connect(database_url()) as claim:
        claim.execute("SELECT 1 FROM tasks_job WHERE id = %s FOR UPDATE", [locked.id])
        before = time.monotonic()
        assert cancel_matching(Selection(task="t.trace")) == (CancelledMany(cancelled=1), True)
        assert time.monotonic() - before < 1
    assert states() == {locked.id: "dispatched", free.id: "cancelled"}
    assert cancel_matching(Selection(task="t.trace")) == (CancelledMany(cancelled=1), False)


def test_a_batch_reads_no_finished_job() -> None:
    execute(
        "INSERT INTO tasks_job (id, task, queue, idempotency_key, fingerprint, payload, state,"
        " finished_at) SELECT gen_random_uuid(), 't.trace', 'default', n::text, '', '{}',"
        " 'succeeded', now() FROM generate_series(1, 20000) n"
    )
    job_row(State.QUEUED)
    execute("ANALYZE tasks_job")
    where, values = Selection(task="t.trace").where
    for part in ledger.UNFINISHED_PARTS:
        plan = execute(f"EXPLAIN SELECT id FROM tasks_job WHERE {part} AND {where}", *values)
        assert "Seq Scan" not in str(plan), plan


# --- over HTTP ---------------------------------------------------------------------------


def test_a_client_cancels_the_matching_jobs_of_its_own_tenant() -> None:
    mine, other = job_row(State.QUEUED, tenant="acme"), job_row(State.QUEUED, tenant="globex")
    runs = job_row(State.RUNNING, tenant="acme")
    answer = api_client("acme", "enqueue").post(
        "/jobs/cancel", {"task": "t.trace", "reason": "campaign stopped"}
    )
    assert answer.status_code == 202, answer.content
    assert answer.json() == {"cancelled": 1, "asked": 1, "more": False, "warning": None}
    assert states() == {mine.id: "cancelled", other.id: "queued", runs.id: "running"}
    assert {a.reason for a in OperatorAction.objects.all()} == {"campaign stopped"}


WHY = {"reason": "why"}


def test_a_name_that_nobody_knows_is_told_when_nothing_matched() -> None:
    operator = api_client("acme", "operate")
    said = operator.post("/jobs/cancel", {"task": "t.trcae", **WHY}).json()
    assert (said["cancelled"], said["asked"]) == (0, 0)
    assert said["warning"] == "No task 't.trcae' is known here; did you mean 't.trace'?"
    said = operator.post("/jobs/cancel", {"queue": "defualt", "task": "t.trace", **WHY}).json()
    assert said["warning"] == "No queue 'defualt' is known here; did you mean 'default'?"
    assert operator.post("/jobs/cancel", {"task": "t.trace", **WHY}).json()["warning"] is None
    # Whoever only enqueues may not see all tasks, and is not told their names.
    said = api_client("acme", "enqueue").post("/jobs/cancel", {"task": "t.trcae", **WHY}).json()
    assert said["warning"] == "Nothing was cancelled, and no such task or queue is known here."


def test_a_name_of_an_old_release_is_no_reason_for_a_warning() -> None:
    job_row(task="old.task", tenant="acme")
    said = api_client("acme", "operate").post("/jobs/cancel", {"task": "old.task", **WHY}).json()
    assert (said["cancelled"], said["warning"]) == (1, None)


@pytest.mark.parametrize(
    "body",
    [
        {"task": "t.trace"},
        {"reason": "why"},
        {"state": "queued", "reason": "why"},
        {"task": "t.trace", "reason": "why", "state": "succeeded"},
        {"task": "t.trace", "reason": "why", "tenant": "globex"},
        {"task": "t.trace", "reason": "why", "created_before": "yesterday"},
    ],
)
def test_a_request_that_names_too_little_or_something_else_cancels_nothing(body: Any) -> None:
    job = job_row(State.QUEUED, tenant="acme")
    assert api_client("acme").post("/jobs/cancel", body).status_code == 422
    assert states() == {job.id: "queued"}


def test_a_client_that_only_reads_cancels_nothing() -> None:
    body = {"task": "t.trace", "reason": "why"}
    assert api_client("acme", "read").post("/jobs/cancel", body).status_code == 403


def test_a_person_who_operates_cancels_the_jobs_of_all_tenants() -> None:
    for tenant in ("acme", "globex"):
        job_row(State.QUEUED, tenant=tenant)
    answer = person("operate_job").post("/jobs/cancel", {"task": "t.trace", "reason": "why"})
    assert answer.json()["cancelled"] == 2


# --- from the command line ---------------------------------------------------------------


def command(*options: str) -> str:
    out = StringIO()
    call_command("cancel", *options, stdout=out)
    return out.getvalue()


def test_the_command_counts_first_and_then_cancels_with_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(operate, "BATCH", 4)
    monkeypatch.setattr("tasks.management.commands.cancel.BATCH", 4)
    for _ in range(5):
        job_row(State.QUEUED, tenant="acme")
    given = ("--task", "t.trace", "--tenant", "acme", "--reason", "stopped", "--actor", "ann")
    assert command(*given, "--dry-run") == "Would cancel 5 jobs.\n"
    assert set(states().values()) == {"queued"}
    assert command(*given).splitlines() == [
        "Cancelled 4 jobs, asked 0 running to stop ...",
        "Cancelled 5 jobs, asked 0 running to stop.",
    ]
    assert {a.actor for a in OperatorAction.objects.all()} == {"ann"}


def test_the_command_wants_to_know_which_jobs_are_meant() -> None:
    with pytest.raises(CommandError, match="Name at least"):
        command("--reason", "why", "--state", "queued")


# --- locked rows -------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_cancelling_a_job_whose_row_is_locked_is_refused_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ledger, "LOCK_TIMEOUT_MS", 100)
    job = job_row(State.RUNNING, tenant="acme")
    with psycopg.connect(database_url()) as body:
        body.execute("UPDATE tasks_job SET progress = '1' WHERE id = %s", [job.id])
        with pytest.raises(Rejected, match="locked by an open transaction"):
            ledger.cancel(job.id, actor="ann")
        answer = api_client("acme").post(f"/jobs/{job.id}/cancel")
        assert (answer.status_code, answer["Retry-After"]) == (429, "1")
        answers = operate.operate("cancel", [job.id], actor="ann", reason="")  # type: ignore[arg-type]
        assert list(answers.refused) == ["the job is locked by an open transaction"]
    assert ledger.cancel(job.id, actor="ann") == State.RUNNING
    assert execute("SHOW lock_timeout") == [("0",)]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("error", [TimeLimitExceeded(1), RuntimeError("killed")])
def test_a_parent_does_not_wait_long_for_the_row_of_its_dead_child(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "LOCK_TIMEOUT_MS", 100)
    job, task = job_row(State.RUNNING), SimpleNamespace(max_crashes=3)
    with psycopg.connect(database_url()) as statement:
        statement.execute("UPDATE tasks_job SET progress = '1' WHERE id = %s", [job.id])
        before = time.monotonic()
        with pytest.raises(DatabaseError):
            settle.lost(job.id, job.dispatch_no, task, error)
        assert time.monotonic() - before < 1
    assert states() == {job.id: "running"}
    settle.lost(job.id, job.dispatch_no, task, error)
    assert states() != {job.id: "running"}


# --- a body that waits -------------------------------------------------------------------


class Reason:
    """What a watch asks; None until it is set."""

    told: Interrupted | None = None

    def __call__(self) -> Interrupted | None:
        return self.told


def test_a_callback_is_called_once_from_another_thread_and_the_block_raises_the_cause() -> None:
    reason, called, threads = Reason(), threading.Event(), []

    def callback() -> None:
        threads.append(threading.current_thread())
        called.set()

    def body() -> None:
        with interrupt.WATCHER.add(Watch(reason, callback)):
            reason.told = Cancelled("stop")
            assert called.wait(5)
            raise ConnectionError("cut")

    with pytest.raises(Cancelled) as caught:
        body()
    assert isinstance(caught.value.__cause__, ConnectionError)
    time.sleep(2 * interrupt.LOOK_EVERY_S)
    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()


def test_a_callback_whose_block_has_ended_is_not_called() -> None:
    reason, called = Reason(), threading.Event()
    with interrupt.WATCHER.add(Watch(reason, called.set)):
        pass
    reason.told = Draining("stop")
    assert not called.wait(2 * interrupt.LOOK_EVERY_S)


def test_a_callback_that_fails_or_hangs_keeps_no_other_from_being_called() -> None:
    reason, released, called = Reason(), threading.Event(), threading.Event()

    def fails() -> None:
        raise OSError("closed already")

    with (
        interrupt.WATCHER.add(Watch(reason, lambda: released.wait(5))),
        interrupt.WATCHER.add(Watch(reason, fails)),
        interrupt.WATCHER.add(Watch(reason, called.set)),
    ):
        reason.told = Cancelled("stop")
        assert called.wait(2)
        released.set()


def test_a_run_keeps_nothing_of_blocks_that_have_ended() -> None:
    run = Run(NO_RUN.claim, None)
    for _ in range(100):
        with run.on_interrupt(pytest.fail):
            pass
    assert len(run.watches) == 1


def test_outside_a_job_a_callback_is_never_called() -> None:
    with NO_RUN.on_interrupt(pytest.fail):
        pass


def test_a_run_that_was_too_young_is_asked_about_within_a_heartbeat() -> None:
    """Skipped by one renewal, it is not skipped for the whole pause until the next."""
    job = job_row(State.RUNNING)
    renewer = Renewer(lambda: [Held(job.id, job.dispatch_no, job.queue, 1, time.time())])
    renewer.turn()
    assert renewer.pause_s <= renewer.every_s / 2
