"""What becomes of the jobs of a batch when its process has died, or a row of it is locked."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery.app.task import Context
from structlog.testing import capture_logs

from tasks import batch, batch_ledger, flush, ledger
from tasks.enqueue import enqueue_many
from tasks.flush import Batch
from tasks.journal import JOURNAL, Place, Stage
from tasks.models import Job
from tasks.run import Run
from tasks.wiring import topology
from tests.ledger_tasks import trace
from tests.processes import database_url

pytestmark = pytest.mark.django_db(transaction=True)

Named = tuple[UUID, int]
KILLED = WorkerLostError("killed")
LATE = TimeLimitExceeded(3)


def dispatched(number: int) -> list[Named]:
    enqueue_many(trace, [{"note": str(n)} for n in range(number)])
    return [(job.id, job.dispatch_no) for job in ledger.dispatch("default", number)]


def claim(jobs: Sequence[Named]) -> list[ledger.Claim]:
    claims = batch_ledger.claim(jobs, worker="w", release="r", lease_s=15.0)
    return [next(one for one in claims if one.id == job_id) for job_id, _ in jobs]


@pytest.fixture
def message_id() -> UUID:
    return uuid4()


@contextmanager
def noted(message_id: UUID, *stages: Stage) -> Iterator[Place]:
    """The journal of a process, as it has left it."""
    with JOURNAL.place(message_id, len(stages)) as place:
        for number, stage in enumerate(stages):
            place.note(number, stage)
            if stage == Stage.ENDED:
                place.keep(number, f'"{number}"')
        yield place


def lose(message_id: UUID, jobs: Sequence[Named], exc: BaseException) -> list[UUID]:
    named = [[str(job_id), number] for job_id, number in jobs]
    request = Context(id=str(message_id), task=trace.name, batch=named, worker_pid=os.getpid())
    return batch.lost(str(message_id), request, exc)


@contextmanager
def locked(job_id: UUID) -> Iterator[None]:
    with psycopg.connect(database_url()) as other:
        other.execute("SELECT FROM tasks_job WHERE id = %s FOR UPDATE", [job_id])
        yield
        other.rollback()


def found(jobs: Sequence[Named]) -> list[tuple[str, int]]:
    rows = {job.id: (job.state, job.crashes) for job in Job.objects.all()}
    return [rows[job_id] for job_id, _ in jobs]


STAGES = (Stage.ENDED, Stage.STARTED, Stage.CLAIMED)
FATES = [("succeeded", 0), ("queued", 1), ("queued", 0)]


def test_each_job_has_the_fate_of_its_stage(message_id: UUID) -> None:
    jobs = dispatched(3)
    claim(jobs)
    with noted(message_id, *STAGES):
        assert lose(message_id, jobs, KILLED) == []
        assert found(jobs) == FATES
        assert Job.objects.get(id=jobs[0][0]).result == "0"
        assert JOURNAL.read(message_id) == []


@pytest.mark.parametrize("number", range(3))
def test_a_locked_row_costs_only_its_own_job(message_id: UUID, number: int) -> None:
    jobs = dispatched(3)
    claim(jobs)
    with noted(message_id, *STAGES), locked(jobs[number][0]):
        lose(message_id, jobs, KILLED)
        fates = list(FATES)
        fates[number] = ("running", 0)  # until its lease ends
        assert found(jobs) == fates
        assert JOURNAL.read(message_id) == []


def test_a_process_that_died_while_it_claimed_costs_nothing(message_id: UUID) -> None:
    """But what it claimed travels alone: it may be what killed it."""
    jobs = dispatched(3)
    claim(jobs)
    with noted(message_id, *[Stage.NAMED] * 3):
        lose(message_id, jobs, KILLED)
    assert found(jobs) == [("queued", 0)] * 3
    assert [job.is_alone for job in ledger.dispatch("default", 3)] == [True] * 3


def test_what_another_process_has_of_the_message_is_left_to_it(
    message_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = dispatched(3)
    claim(jobs)
    monkeypatch.setattr(os, "getpid", lambda: 7)
    with noted(message_id, Stage.GONE, Stage.STARTED, Stage.CLAIMED):
        monkeypatch.undo()
        with noted(message_id, Stage.STARTED, Stage.NAMED, Stage.NAMED):
            lose(message_id, jobs, KILLED)
        assert found(jobs) == [("queued", 1), ("running", 0), ("running", 0)]
        assert [entry.pid for entry in JOURNAL.read(message_id)] == [7]


def test_a_time_limit_between_two_bodies_loses_no_result(message_id: UUID) -> None:
    """While a flush waited for a lock, say."""
    jobs = dispatched(3)
    claim(jobs)
    with noted(message_id, Stage.ENDED, Stage.ENDED, Stage.CLAIMED):
        assert lose(message_id, jobs, LATE) == []
        assert found(jobs) == [("succeeded", 0), ("succeeded", 0), ("queued", 0)]
        assert JOURNAL.read(message_id) == []


def test_a_time_limit_before_the_first_body_leaves_all_to_their_leases(message_id: UUID) -> None:
    jobs = dispatched(2)
    claim(jobs)
    with noted(message_id, Stage.CLAIMED, Stage.CLAIMED):
        assert lose(message_id, jobs, LATE) == []
        assert found(jobs) == [("running", 0)] * 2
        assert JOURNAL.read(message_id) == []


def test_a_time_limit_fails_the_job_that_ran(message_id: UUID) -> None:
    jobs = dispatched(3)
    claim(jobs)
    with noted(message_id, *STAGES):
        assert lose(message_id, jobs, LATE) == [jobs[1][0]]
    assert found(jobs) == [("succeeded", 0), ("failed", 0), ("queued", 0)]


# --- while it lives ------------------------------------------------------------------------


@contextmanager
def started(message_id: UUID, jobs: Sequence[Named]) -> Iterator[tuple[Batch, list[Run]]]:
    """All bodies have begun."""
    with JOURNAL.place(message_id, len(jobs)) as place:
        one = Batch(jobs, place, topology().queue("default"))
        claims = claim(jobs)
        one.add(jobs, [Run(claimed, trace) for claimed in claims], claimed_at=one.began_at)
        runs = [run for _ in jobs if (run := one.start_next()) is not None]
        assert len(runs) == len(jobs)
        yield one, runs


def test_a_flush_waits_for_no_lock_until_the_end(message_id: UUID) -> None:
    jobs = dispatched(3)
    with started(message_id, jobs) as (one, runs):
        for run in runs:
            one.succeeded(run, result="null", note="")
        with locked(jobs[1][0]):
            one.flush()
            assert [state for state, _ in found(jobs)] == ["succeeded", "running", "succeeded"]
        with capture_logs() as logs:
            one.close()
    assert [state for state, _ in found(jobs)] == ["succeeded"] * 3
    assert [log["event"] for log in logs] == ["job_settled"]


def test_a_flush_that_is_tried_again_has_succeeded(message_id: UUID) -> None:
    """Its connection broke after the commit, before the answer."""
    jobs = dispatched(1)
    with started(message_id, jobs) as (one, runs):
        one.succeeded(runs[0], result="1", note="")
        batch_ledger.succeed([batch_ledger.Success(runs[0].claim.id, runs[0].fence, "1")])
        with capture_logs() as logs:
            one.flush()
    assert [log["event"] for log in logs] == ["job_settled"]


def test_a_run_that_lost_its_job_is_refused(message_id: UUID) -> None:
    jobs = dispatched(1)
    with started(message_id, jobs) as (one, runs):
        one.succeeded(runs[0], result="1", note="")
        batch_ledger.crash(jobs, reason="rescued")
        with capture_logs() as logs:
            one.flush()
    assert [log["event"] for log in logs] == ["settle_refused"]


def test_what_is_cancelled_before_its_turn_is_counted_as_cancelled(
    message_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[Any] = []
    monkeypatch.setattr(flush.metrics, "settled", lambda *about: counted.append(about[-1]))
    jobs = dispatched(2)
    claims = claim(jobs)
    ledger.cancel(claims[0].id, actor="test")
    with JOURNAL.place(message_id, 2) as place:
        one = Batch(jobs, place, topology().queue("default"))
        one.add(jobs, [Run(claimed, trace) for claimed in claims], claimed_at=one.began_at)
        one.close()
    assert sorted(counted) == ["cancelled", "given_back"]
