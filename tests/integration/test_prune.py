"""What is past its retention goes, in batches, with all that belongs to it; nothing else does."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.test import Client
from pytest_django.fixtures import Settings

from project.celery import app
from tasks import ledger, operate, prune
from tasks.enqueue import enqueue
from tasks.models import Attempt, Job, OperatorAction, Output, Step
from tasks.prune import Pruner
from tasks.relay import Relay
from tasks.states import Action, Outcome, State
from tasks.testing import run_jobs
from tasks.topology import Queue, Topology, days
from tests import published_tasks  # noqa: F401  (registers them)
from tests.broker import trace_table
from tests.callers import api_client
from tests.job_rows import job_row
from tests.ledger_tasks import keyed, trace
from tests.processes import database_url, relay, wait_until

DAY_S = 86_400.0
EIGHT_DAYS_S = 8 * DAY_S
ENDED = [State.SUCCEEDED, State.CANCELLED]


def pruned() -> int:
    return sum(batch.pruned for batch in prune.walk())


def left() -> set[UUID]:
    return set(Job.objects.values_list("id", flat=True))


def failed(*, age_s: float, dead_letter: bool) -> Job:
    return job_row(State.FAILED, age_s=age_s, dead_letter=dead_letter)


@pytest.mark.django_db
@pytest.mark.parametrize("state", ENDED)
def test_a_finished_job_goes_when_its_retention_is_over_and_not_before(state: State) -> None:
    job_row(state, age_s=EIGHT_DAYS_S)
    young = job_row(state, age_s=6 * DAY_S)
    assert pruned() == 1
    assert left() == {young.id}


@pytest.mark.django_db
@pytest.mark.parametrize("state", [State.QUEUED, State.DISPATCHED, State.RUNNING])
def test_what_has_not_ended_stays_however_old_it_is(state: State) -> None:
    job_row(state, age_s=400 * DAY_S)
    assert pruned() == 0


@pytest.mark.django_db
def test_a_dead_letter_stays_until_an_operator_has_dealt_with_it_and_then_for_its_retention() -> (
    None
):
    letter = failed(age_s=30 * DAY_S, dead_letter=True)
    failed(age_s=30 * DAY_S, dead_letter=False)
    assert pruned() == 1
    assert left() == {letter.id}
    assert operate.operate(Action.DISMISS, [letter.id], actor="ann", reason="paid").done
    assert pruned() == 0, "who dismissed it and why is kept as long as any job"
    OperatorAction.objects.update(at=datetime.now(UTC) - timedelta(days=8))
    assert pruned() == 1
    assert not OperatorAction.objects.exists()


@pytest.mark.django_db
def test_a_job_takes_its_attempts_steps_outputs_and_actions_along(settings: Settings) -> None:
    def belongings(job: Job) -> None:
        now = datetime.now(UTC)
        Attempt.objects.create(
            job=job, fence=1, number=1, outcome=Outcome.SUCCEEDED, worker="w", started_at=now
        )
        Step.objects.create(job=job, name="charge", fence=1)
        Output.objects.create(job=job, seq=1, data="x")
        OperatorAction.objects.create(
            job=job, action=Action.REPLAY, actor="ann", at=now - timedelta(days=9)
        )

    old, young = job_row(State.SUCCEEDED, age_s=EIGHT_DAYS_S), job_row(State.SUCCEEDED)
    belongings(old)
    belongings(young)
    assert pruned() == 1
    for model in (Attempt, Step, Output, OperatorAction):
        assert [row.job_id for row in model.objects.all()] == [young.id]


@pytest.mark.django_db
def test_each_queue_keeps_its_jobs_for_its_own_time(settings: Settings) -> None:
    settings.TASKS_TOPOLOGY = Topology.of(
        [Queue("short", retention=days(1)), Queue("long", retention=days(30))]
    )
    ages = {"short": 2 * DAY_S, "long": EIGHT_DAYS_S, "undeclared": 6 * DAY_S}
    rows = {q: job_row(State.SUCCEEDED, age_s=age_s, queue=q) for q, age_s in ages.items()}
    assert pruned() == 1
    assert left() == {rows["long"].id, rows["undeclared"].id}


@pytest.mark.django_db
def test_batches_are_bounded_and_what_stays_does_not_hide_what_is_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prune, "BATCH", 4)
    monkeypatch.setattr(prune, "LOOK", 10)
    for number in range(60):
        state = State.QUEUED if number % 3 else State.SUCCEEDED
        job_row(state, age_s=EIGHT_DAYS_S + number)
    batches = list(prune.walk())
    assert sum(batch.pruned for batch in batches) == 20
    assert max(batch.pruned for batch in batches) <= 4
    assert Job.objects.count() == 40
    assert [batch.at_end for batch in batches].count(True) == 1


@pytest.mark.django_db
def test_a_walk_ends_at_the_first_job_that_is_too_young(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prune, "LOOK", 5)
    job_row(State.SUCCEEDED, age_s=EIGHT_DAYS_S)
    for number in range(20):
        job_row(State.SUCCEEDED, age_s=100.0 - number)
    assert [(batch.pruned, batch.at_end) for batch in prune.walk()] == [(1, True)]


@pytest.mark.django_db
def test_until_the_key_expires_a_repeat_is_answered_and_after_the_job_is_gone_it_is_new() -> None:
    with trace_table():
        first = enqueue(keyed, {"order_id": 7})
        run_jobs()
        again = enqueue(keyed, {"order_id": 7})
        finished_at = Job.objects.get(id=first.job_id).finished_at
        assert finished_at is not None
        assert again.key_expires_at == finished_at + timedelta(days=7)
        assert first.key_expires_at <= again.key_expires_at, "never earlier than promised"

        end_it_earlier(first.job_id, by=timedelta(days=7, seconds=-30))
        assert pruned() == 0
        assert not enqueue(keyed, {"order_id": 7}).created
        end_it_earlier(first.job_id, by=timedelta(seconds=60))
        assert pruned() == 1
        assert enqueue(keyed, {"order_id": 7}).created


def end_it_earlier(job_id: UUID, *, by: timedelta) -> None:
    moved = {name: models.F(name) - by for name in ("created_at", "started_at", "finished_at")}
    Job.objects.filter(id=job_id).update(**moved)


@pytest.mark.django_db
def test_the_key_of_a_dead_letter_has_no_end() -> None:
    caller = api_client()
    job_id = caller.enqueued()
    Job.objects.filter(id=job_id).update(
        state=State.FAILED, failure="error", dead_letter=True, finished_at=datetime.now(UTC)
    )
    assert caller.get(f"/jobs/{job_id}").json()["key_expires_at"] is None


@pytest.mark.django_db(transaction=True)
def test_a_job_that_is_replayed_or_locked_meanwhile_stays() -> None:
    rows = [failed(age_s=EIGHT_DAYS_S, dead_letter=False) for _ in range(3)]
    with psycopg.connect(database_url()) as other:
        other.execute("SELECT FROM tasks_job WHERE id = %s FOR UPDATE", [rows[0].id])
        assert prune.look(prune.BEGINNING)[0]
        assert ledger.replay(rows[1].id, actor="ann", reason="x")
        assert prune.delete([row.id for row in rows]) == 1
    assert left() == {rows[0].id, rows[1].id}


@pytest.fixture
def order_model() -> Iterator[Any]:
    """A table of another app that points at jobs, and forbids their end."""

    class Order(models.Model):
        job = models.ForeignKey(Job, on_delete=models.DO_NOTHING)

        class Meta:
            app_label = "sample_shop"

    with schema() as editor:
        editor.create_model(Order)
    yield Order
    with schema() as editor:
        editor.delete_model(Order)
    del Job._meta.apps.all_models["sample_shop"]["order"]
    Job._meta.apps.clear_cache()


def schema() -> BaseDatabaseSchemaEditor:
    return connection.schema_editor()


@pytest.mark.django_db(transaction=True)
def test_a_job_that_another_table_needs_stays_and_stops_no_other(order_model: Any) -> None:
    rows = [job_row(State.SUCCEEDED, age_s=EIGHT_DAYS_S + number) for number in range(3)]
    order_model.objects.create(job=rows[1])
    assert pruned() == 2
    assert left() == {rows[1].id}


# --- who does it --------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_pruner_takes_a_batch_at_a_time_and_rests_after_a_walk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prune, "BATCH", 2)
    monkeypatch.setattr(prune, "NEXT_BATCH_AFTER_S", 0.0)
    for number in range(5):
        job_row(State.SUCCEEDED, age_s=EIGHT_DAYS_S + number)
    pruner = Pruner()
    assert (pruner.run(), pruner.is_behind) == (2, True)
    assert (pruner.run(), pruner.is_behind) == (2, True)
    assert (pruner.run(), pruner.is_behind) == (1, False)
    job_row(State.SUCCEEDED, age_s=EIGHT_DAYS_S)
    assert pruner.run() == 0
    assert pruner.walks_at > time.monotonic() + prune.NEXT_WALK_AFTER_S / 2


@pytest.mark.django_db
def test_a_pruner_walks_slowly_past_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prune, "LOOK", 2)
    for number in range(5):
        failed(age_s=EIGHT_DAYS_S + number, dead_letter=True)
    pruner = Pruner()
    assert (pruner.run(), pruner.is_behind) == (0, False)
    assert pruner.walks_at > time.monotonic() + prune.NEXT_LOOK_AFTER_S / 2
    assert pruner.after > prune.BEGINNING, "it goes on there"


@pytest.mark.django_db(transaction=True)
def test_a_relay_prunes() -> None:
    for number in range(prune.BATCH + 50):
        job_row(State.SUCCEEDED, age_s=EIGHT_DAYS_S + number)
    young = job_row(State.SUCCEEDED)
    with relay() as process:
        wait_until(lambda: left() == {young.id}, within_s=30, what="pruned")
        process.wait_for("jobs_pruned")


@pytest.mark.django_db
def test_a_relay_dispatches_before_it_prunes(monkeypatch: pytest.MonkeyPatch) -> None:
    relay_ = Relay(app)
    order: list[str] = []
    monkeypatch.setattr(relay_.pruner, "run", lambda: order.append("prune"))
    monkeypatch.setattr(relay_, "dispatch_or_say", lambda *_: order.append("dispatch") or 0)
    enqueue(trace, {"note": "n"})
    relay_.run_once()
    assert order == ["dispatch", "prune"]


@pytest.mark.django_db
def test_the_metrics_say_for_how_long_nobody_has_pruned(client: Client) -> None:
    assert "tasks_prune_overdue_seconds 0.0" in client.get("/metrics").content.decode()
    job_row(State.SUCCEEDED, age_s=EIGHT_DAYS_S)
    failed(age_s=30 * DAY_S, dead_letter=True)
    assert prune.overdue_s() == pytest.approx(DAY_S, abs=60)


def command(*options: str) -> str:
    out = io.StringIO()
    call_command("prune", *options, stdout=out)
    return out.getvalue()


@pytest.mark.django_db
def test_the_command_says_what_would_go_and_then_lets_it_go() -> None:
    assert command("--dry-run") == "Nothing is past its retention.\n"
    for number in range(3):
        job_row(State.SUCCEEDED, age_s=EIGHT_DAYS_S + number)
    job_row(State.SUCCEEDED, age_s=EIGHT_DAYS_S, queue="bulk")
    assert command("--dry-run").splitlines() == [
        "QUEUE    RETENTION  JOBS  OLDEST ENDED",
        "bulk     7.0 d      1     8.0 d",
        "default  7.0 d      3     8.0 d",
        "4 jobs would be deleted.",
    ]
    assert Job.objects.count() == 4
    assert command() == "4 jobs deleted.\n"
    assert not Job.objects.exists()
