"""Which runs a worker renews, for how long, and how often."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from pytest_django.fixtures import Settings

from tasks import coroutines, lease, ledger
from tasks.board import Board, Word
from tasks.coroutines import Gate
from tasks.journal import JOURNAL, Stage
from tasks.lease import LOCKED_IS_ASKED_AGAIN_AFTER_S, Held, Renewer, held_by
from tasks.ledger import Kept
from tasks.models import Job
from tasks.rescue import EXPIRED_FOR_S
from tasks.states import State
from tasks.topology import LEASE_S, Queue, Topology
from tests.job_rows import job_row
from tests.processes import database_url

QUICK = Topology.of([Queue("quick", lease=3), Queue("patient", lease=60)])


def held(job: Job, *, since: float | None = None) -> Held:
    return Held(job.id, job.dispatch_no, job.queue, 1, time.time() - 30 if since is None else since)


def lease_left_s(job: Job) -> float:
    job.refresh_from_db()
    assert job.lease_expires_at is not None
    return (job.lease_expires_at - datetime.now(UTC)).total_seconds()


@pytest.mark.django_db
def test_each_run_gets_the_lease_of_its_queue(settings: Settings) -> None:
    settings.TASKS_TOPOLOGY = QUICK
    jobs = {name: job_row(State.RUNNING, queue=name) for name in ("quick", "patient", "other")}
    Renewer(lambda: [held(job) for job in jobs.values()], Board()).turn()
    left_s = {name: round(lease_left_s(job)) for name, job in jobs.items()}
    assert left_s == {"quick": 3, "patient": 60, "other": LEASE_S}


def test_leases_are_renewed_three_times_in_the_shortest_one(settings: Settings) -> None:
    settings.TASKS_TOPOLOGY = QUICK
    assert Renewer(list, Board()).every_s == 1
    settings.TASKS_TOPOLOGY = Topology.of([Queue("patient", lease=60)])
    assert Renewer(list, Board()).every_s == LEASE_S / 3  # of a queue that is not declared


@pytest.mark.django_db
@pytest.mark.parametrize("jump_s", [-3600, 3600])
def test_a_clock_that_jumps_does_not_keep_a_run_from_being_renewed(jump_s: float) -> None:
    job = job_row(State.RUNNING)
    Job.objects.update(lease_expires_at=datetime.now(UTC) + timedelta(seconds=1))
    Renewer(lambda: [held(job, since=time.time() - jump_s)], Board()).turn()
    assert lease_left_s(job) > LEASE_S - 1


def test_a_run_that_has_just_begun_pays_nothing() -> None:
    runs = [Held(uuid4(), 1, "default", 1, time.time())]
    Renewer(lambda: runs, Board()).turn()  # a query would be refused here


def request(**changes: Any) -> SimpleNamespace:
    task = SimpleNamespace(is_ledger_task=True, queue=None)
    carried = {"dispatch_no": 4, "delivery_info": {"routing_key": "bulk"}}
    known = {"id": str(uuid4()), "task": task, "request_dict": carried, "worker_pid": 7}
    return SimpleNamespace(**{**known, "time_start": 1.0, **changes})


def test_only_runs_of_ledger_tasks_that_have_begun_are_held() -> None:
    begun = request()
    waiting, plain = request(time_start=None), request(task=SimpleNamespace())
    assert held_by([begun, waiting, plain]) == [Held(UUID(begun.id), 4, "bulk", 7, 1.0)]


def test_the_run_of_an_adopted_message_is_held_too() -> None:
    """Its message bears no dispatch number: that was given when it was adopted."""
    adopted = request(id="chosen-by-hand", request_dict={"delivery_info": {"routing_key": "bulk"}})
    [run] = held_by([adopted])
    assert (run.dispatch_no, run.queue) == (1, "bulk")


def test_a_message_that_waits_for_a_slot_holds_no_job_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Celery counts it as started. Its job would be missed, and ended as lost once it runs."""
    monkeypatch.setattr(coroutines, "gate_of", lambda _: Gate(1))
    waits = request()
    assert held_by([waits]) == []
    before = time.time()
    with coroutines.claimed(UUID(waits.id), 4):
        [run] = held_by([waits])
        assert before <= run.since <= time.time()
    assert held_by([waits]) == []


def test_the_jobs_of_a_batch_are_those_of_its_own_process() -> None:
    """Another may have the same message, and other jobs of it."""
    message_id, jobs = uuid4(), [(uuid4(), number) for number in (1, 2, 3)]
    named = [[str(job_id), number] for job_id, number in jobs]
    carried = {"batch": named, "delivery_info": {"routing_key": "bulk"}}
    mine = request(id=str(message_id), request_dict=carried, worker_pid=os.getpid())
    other = request(id=str(message_id), request_dict=carried, worker_pid=os.getpid() + 1)
    with JOURNAL.place(message_id, 3) as place:
        place.note(0, Stage.CLAIMED)
        place.note(1, Stage.STARTED)
        found = [(run.job_id, run.dispatch_no, run.pid) for run in held_by([mine])]
        assert found == [(*jobs[0], None), (*jobs[1], os.getpid())]
        assert held_by([other]) == []


@pytest.mark.django_db
def test_a_renewal_tells_who_still_owns_a_job() -> None:
    mine, lost = job_row(State.RUNNING), job_row(State.RUNNING)
    kept = ledger.renew([(mine.id, 1, 15.0), (lost.id, 2, 15.0)])
    assert kept == {mine.id: Kept(cancel_requested=False, renewed=True)}


@pytest.mark.django_db(transaction=True)
def test_a_run_whose_row_is_locked_is_not_lost_and_is_renewed_soon_after() -> None:
    """A body in its own transaction, or a web request that cancels, holds the lock."""
    locked, free = job_row(State.RUNNING), job_row(State.RUNNING)
    Job.objects.update(lease_expires_at=datetime.now(UTC) - timedelta(seconds=1))
    board = Board()
    renewer = Renewer(lambda: [held(locked), held(free)], board)
    with psycopg.connect(database_url()) as body:
        body.execute("UPDATE tasks_job SET progress = '1' WHERE id = %s", [locked.id])
        before = time.monotonic()
        renewer.turn()
        assert time.monotonic() - before < 1
    assert lease_left_s(free) > 0 > lease_left_s(locked)
    notice = board.read(locked.id, locked.dispatch_no)
    assert notice
    assert (notice.word, notice.renewed_at >= before) == (Word.NOTHING, True)
    assert not renewer.missed
    assert renewer.pause_s <= LOCKED_IS_ASKED_AGAIN_AFTER_S < EXPIRED_FOR_S
    renewer.renews_at = 0.0
    renewer.turn()
    assert lease_left_s(locked) > 0


@pytest.mark.parametrize("forged", [True, -1, 2**31, "1", 1.0, None])
def test_a_dispatch_number_that_none_can_be_is_taken_for_none(forged: object) -> None:
    carried = {"dispatch_no": forged, "delivery_info": {"routing_key": "bulk"}}
    [run] = held_by([request(id="no-uuid", request_dict=carried)])
    assert run.dispatch_no == 1


@pytest.mark.django_db
@pytest.mark.parametrize("is_over", [True, False])
def test_only_a_run_whose_body_goes_on_is_ended_when_its_job_has_moved_on(
    is_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its worker waits for a broker, Celery still holds runs that ended long ago."""
    ended: list[Held] = []
    monkeypatch.setattr(lease, "end", ended.append)
    monkeypatch.setattr(lease, "SETTLED_IS_SAID_AFTER_S", 0)
    run, board = held(job_row(State.SUCCEEDED)), Board()
    if is_over:
        board.note_over(run.job_id, run.dispatch_no)
    renewer = Renewer(lambda: [run], board)
    renewer.turn()
    renewer.turn()
    assert ended == ([] if is_over else [run])


def test_the_board_tells_runs_apart_that_share_a_place() -> None:
    board, run = Board(), uuid4()
    same_place = UUID(bytes=bytes(8) + run.bytes[8:])
    board.note_over(run, 1)
    assert board.is_over(run, 1)
    assert not board.is_over(run, 2)
    board.note_over(same_place, 1)
    assert not board.is_over(run, 1)
