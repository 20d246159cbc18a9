"""Jobs on hold: what puts them there, what lets them go, and what it costs to look."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from pytest_django.fixtures import Settings

from tasks import holds, ledger, operate
from tasks.enqueue import enqueue
from tasks.models import Job, Worker
from tasks.states import Action, State
from tasks.testing import run_jobs
from tasks.topology import Queue, Topology
from tests.broker import trace_table
from tests.callers import api_client
from tests.job_rows import job_row
from tests.ledger_tasks import keyed, trace

pytestmark = pytest.mark.django_db

INCOMPATIBLE = "incompatible: $.note: expected int"


def a_worker(name: str = "w", **fields: Any) -> Worker:
    known = {"host": "h", "pid": 1, "queues": ["default"], "known_tasks": [], "capacity": 100}
    return Worker.objects.create(name=name, **known | fields)


def held_row(reason: str, *, held_s: float = 60.0, **fields: Any) -> Job:
    since = datetime.now(UTC) - timedelta(seconds=held_s)
    return job_row(hold_reason=reason, held_at=since, **fields)


def is_held(job: Job) -> bool:
    return bool(Job.objects.get(id=job.id).hold_reason)


# --- unknown tasks -----------------------------------------------------------------------


def test_an_unknown_task_is_released_when_a_live_worker_of_its_queue_knows_it() -> None:
    job = held_row("task unknown")
    a_worker("other queue", queues=["bulk"], known_tasks=["t.trace"])
    a_worker("drains", draining=True, known_tasks=["t.trace"])
    a_worker("stopped", stopped_at=datetime.now(UTC), known_tasks=["t.trace"])
    lost = a_worker("lost", known_tasks=["t.trace"])
    Worker.objects.filter(name="lost").update(last_beat=lost.last_beat - timedelta(seconds=16))
    a_worker("knows others", known_tasks=["t.keyed"])
    assert holds.release(10) == 0
    assert is_held(job)
    a_worker("knows it", known_tasks=["t.keyed", "t.trace"])
    assert holds.release(10) == 1
    assert not is_held(job)
    assert ledger.dispatch("default", 10)[0].id == job.id


def test_a_job_is_released_at_most_once_a_second() -> None:
    a_worker(known_tasks=["t.trace"])
    held_row("task unknown", held_s=0.2)
    assert holds.release(10) == 0


def test_while_others_would_refuse_them_only_as_many_go_as_the_able_can_take() -> None:
    for _ in range(30):
        held_row("task unknown")
    a_worker("old", capacity=50)
    able = a_worker("new", capacity=3, known_tasks=["t.trace"])
    assert holds.release(100) == 6
    Worker.objects.exclude(name=able.name).delete()
    assert holds.release(20) == 20
    assert holds.release(20) == 4


@pytest.mark.parametrize(
    "plan", ["hashjoin", "mergejoin", "material", "hashagg", "sort", "nestloop"]
)
def test_a_bound_holds_whatever_the_plan(plan: str) -> None:
    """Each of these alone, and all of them but the nested loop, are switched off."""
    off = [plan] if plan != "nestloop" else ["hashjoin", "mergejoin", "material", "hashagg", "sort"]
    with connection.cursor() as cursor:
        for name in off:
            cursor.execute(f"SET LOCAL enable_{name} = off")
    now = datetime.now(UTC)
    for _ in range(30):
        held_row("task unknown", returned_since=now - timedelta(days=8))
        job_row(due=False, run_at=now - timedelta(seconds=5), start_by=now - timedelta(seconds=1))
    a_worker("old", capacity=50)
    a_worker("new", capacity=3, known_tasks=["t.trace"])
    assert holds.release(100) == 6
    assert holds.give_up(4) == 4
    assert ledger.stage_due(4) == 4
    assert len(ledger.expire(4)) == 4


def test_tasks_that_nobody_knows_do_not_stand_in_the_way_of_others() -> None:
    for number in range(20):
        held_row("task unknown", task=f"a.unknown_{number}")
    job = held_row("task unknown")
    a_worker(known_tasks=["t.trace"])
    assert holds.release(5) == 1
    assert not is_held(job)


# --- incompatible payloads ---------------------------------------------------------------


def test_a_refused_payload_is_released_for_another_release_only() -> None:
    job = held_row(INCOMPATIBLE, release="r1")
    old = a_worker("old", release="r1", started_at=datetime.now(UTC) - timedelta(hours=1))
    a_worker("other queue", release="r2", queues=["bulk"])
    assert holds.release(10) == 0
    a_worker("new", release="r2")
    assert holds.release(10) == 1
    assert not is_held(job)
    assert old.release == "r1"


def test_a_message_that_was_too_new_goes_to_another_release() -> None:
    job_id = enqueue(trace, {"note": "x"}).job_id
    number = ledger.dispatch_here(job_id)
    assert not ledger.hold_unread(job_id, number + 1, release="old", problem="stale")
    assert ledger.hold_unread(job_id, number, release="old", problem="message format 2")
    Job.objects.filter(id=job_id).update(held_at=datetime.now(UTC) - timedelta(seconds=2))
    a_worker("old", release="old", started_at=datetime.now(UTC) - timedelta(hours=1))
    assert holds.release(10) == 0
    a_worker("new", release="new")
    assert holds.release(10) == 1


def test_without_names_of_releases_a_worker_that_started_later_may_try() -> None:
    held_row(INCOMPATIBLE, release="dev", held_s=5)
    young = held_row(INCOMPATIBLE, release="dev", held_s=2)
    a_worker(release="dev", started_at=datetime.now(UTC) - timedelta(seconds=3))
    assert holds.release(10) == 1
    assert is_held(young)


def test_a_payload_that_no_longer_fits_costs_nothing_and_names_no_value() -> None:
    job_id = enqueue(keyed, {"order_id": 7, "amount": "1"}).job_id
    Job.objects.filter(id=job_id).update(payload={"order_id": "hunter2"})
    run_jobs()
    job = Job.objects.get(id=job_id)
    assert job.hold_reason.startswith("incompatible: $.order_id: ")
    assert "hunter2" not in job.hold_reason
    assert (job.state, job.attempts, job.crashes, job.started_at) == ("queued", 0, 0, None)
    assert not job.history.exists()


def test_a_new_payload_ends_the_hold_of_the_old_one() -> None:
    job_id = enqueue(keyed, {"order_id": 7}).job_id
    Job.objects.filter(id=job_id).update(payload={"order_id": "seven"})
    run_jobs()
    enqueue(keyed, {"order_id": 7, "label": "x"}, on_conflict="replace")
    with trace_table():
        (job,) = run_jobs()
    assert (job.id, job.state) == (job_id, State.SUCCEEDED)


def test_a_cancel_that_was_asked_for_wins_over_the_hold() -> None:
    job_id = enqueue(trace, {"note": "x"}).job_id
    number = ledger.dispatch_here(job_id)
    claim = ledger.claim(job_id, number, worker="w", release="r", lease_s=15)
    assert claim
    ledger.cancel(job_id, actor="ann")
    assert ledger.hold_incompatible(job_id, claim.fence, problem="no")
    job = Job.objects.get(id=job_id)
    assert (job.state, job.hold_reason) == (State.CANCELLED, "")


# --- held for too long -------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["task unknown", INCOMPATIBLE])
def test_what_nobody_could_run_for_a_week_fails_and_can_be_replayed(reason: str) -> None:
    now = datetime.now(UTC)
    old = held_row(reason, returned_since=now - timedelta(days=7, minutes=1))
    young = held_row(reason, returned_since=now - timedelta(days=6))
    assert holds.give_up(10) == 1
    old.refresh_from_db()
    assert (old.state, old.failure, old.hold_reason) == ("failed", "gave_up", "")
    assert old.error_message == f"on hold: {reason}"
    assert is_held(young)
    assert operate.operate(Action.REPLAY, [old.id], actor="ann", reason="x").done == [old.id]


def test_each_queue_gives_up_after_its_own_time(settings: Settings) -> None:
    settings.TASKS_TOPOLOGY = Topology.of([Queue("bulk", give_up_after=timedelta(hours=1))])
    since = datetime.now(UTC) - timedelta(hours=2)
    rows = [held_row("task unknown", queue=q, returned_since=since) for q in ("bulk", "default")]
    assert holds.give_up(10) == 1
    assert [is_held(row) for row in rows] == [False, True]


def test_what_an_operator_paused_is_not_given_up() -> None:
    job = held_row("paused", returned_since=datetime.now(UTC) - timedelta(days=30))
    assert holds.give_up(10) == 0
    assert is_held(job)


def test_a_hold_counts_from_the_first_one() -> None:
    job_id = enqueue(trace, {"note": "x"}).job_id
    seen = set()
    for _ in range(2):
        assert ledger.hold_unknown(job_id, ledger.dispatch_here(job_id))
        seen.add(Job.objects.get(id=job_id).returned_since)
        Job.objects.filter(id=job_id).update(hold_reason="")
    assert len(seen) == 1
    assert None not in seen


# --- whatever holds it -------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["task unknown", INCOMPATIBLE, "paused"])
def test_a_held_job_can_be_cancelled(reason: str) -> None:
    job = held_row(reason)
    assert operate.operate(Action.CANCEL, [job.id], actor="ann", reason="x").done == [job.id]
    job.refresh_from_db()
    assert (job.state, job.hold_reason) == (State.CANCELLED, "")


def test_a_held_job_that_expires_can_be_replayed() -> None:
    job = held_row("task unknown", start_by=datetime.now(UTC) - timedelta(seconds=1))
    assert ledger.expire(10) == [(job.id, "default")]
    assert ledger.replay(job.id, actor="ann", reason="x")
    job.refresh_from_db()
    assert (job.state, job.hold_reason, job.start_by) == (State.QUEUED, "", None)


def test_other_holds_are_not_released_here() -> None:
    job = held_row("paused", release="r1")
    a_worker(release="r2", known_tasks=["t.trace"])
    assert holds.release(10) == 0
    assert is_held(job)
    assert ledger.dispatch("default", 10) == []
    assert ledger.dispatch_here(job.id) == 0


def test_callers_see_why_and_since_when_a_job_is_held() -> None:
    job = held_row(INCOMPATIBLE, tenant="acme")
    shown = api_client("acme").get(f"/jobs/{job.id}").json()
    assert (shown["waiting_for"], shown["hold_reason"]) == ("hold", INCOMPATIBLE)
    held_at = datetime.fromisoformat(shown["held_at"])
    assert abs(held_at - job.held_at) < timedelta(milliseconds=1)
    queues = api_client("acme").get("/queues").json()
    assert next(q["held"] for q in queues if q["name"] == "default") == 1


@pytest.mark.parametrize(
    ("held", "column", "index"),
    [
        (ledger.UNKNOWN, "task", "tasks_job_unknown"),
        (ledger.INCOMPATIBLE.replace("%%", "%"), "release", "tasks_job_incompatible"),
    ],
)
def test_looking_for_held_jobs_reads_their_index_only(held: str, column: str, index: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off")
        cursor.execute(
            f"EXPLAIN SELECT id FROM tasks_job WHERE {held} AND queue = 'q'"
            f" AND {column} = 'x' AND held_at < now() ORDER BY held_at LIMIT 10"
        )
        plan = "\n".join(row[0] for row in cursor.fetchall())
    assert f"Index Scan using {index} on" in plan
    assert "Filter" not in plan
    assert "Sort" not in plan
