"""What happens to a job when the process under it dies, freezes or is told to stop."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from uuid import UUID

import pytest

from tasks import ledger
from tasks.enqueue import enqueue
from tasks.models import Attempt, Job, Output, Step, Worker
from tasks.states import State
from tests import surviving_tasks
from tests.broker import Corner, Trace, corner_of, execute, on_each_broker, trace_table
from tests.processes import relay, wait_until, worker

TASKS = ("-I", "tests.surviving_tasks")

pytestmark = [pytest.mark.timeout(110), pytest.mark.django_db(transaction=True)]


@pytest.fixture
def corner(request: pytest.FixtureRequest) -> Iterator[Corner]:
    corner = corner_of(getattr(request, "param", "redis"))
    yield corner
    corner.clear()


@pytest.fixture
def trace() -> Iterator[Trace]:
    with trace_table() as trace:
        yield trace


def job(job_id: UUID) -> Job:
    return Job.objects.get(id=job_id)


def ends(job_id: UUID, *, within_s: float = 40.0) -> Job:
    wait_until(lambda: job(job_id).finished_at is not None, within_s=within_s, what="it ends")
    return job(job_id)


def begins(trace: Trace, note: str, times: int = 1, *, within_s: float = 40.0) -> None:
    wait_until(lambda: trace.notes.count(note) >= times, within_s=within_s, what=f"{note} begins")


@on_each_broker
def test_a_job_whose_worker_was_killed_starts_again_within_two_leases(
    corner: Corner, trace: Trace
) -> None:
    with relay(env=corner.env):
        with worker("default", *TASKS, "-c", "1", env=corner.env) as process:
            job_id = enqueue(surviving_tasks.slow, {"note": "x", "seconds": 20}).job_id
            begins(trace, "x begins")
            process.kill()
            killed_at = time.monotonic()
        with worker("default", *TASKS, "-c", "1", name="w2", env=corner.env):
            begins(trace, "x begins", 2)
            assert time.monotonic() - killed_at < 30
            assert job(job_id).crashes == 1
            assert job(job_id).attempts == 0


def test_a_successor_of_the_same_name_does_not_keep_the_jobs_of_the_dead(
    corner: Corner, trace: Trace
) -> None:
    with relay(env=corner.env):
        with worker("default", *TASKS, "-c", "1", env=corner.env) as process:
            enqueue(surviving_tasks.slow, {"note": "x", "seconds": 20})
            begins(trace, "x begins")
            process.kill()
        with worker("default", *TASKS, "-c", "1", env=corner.env):
            begins(trace, "x begins", 2, within_s=30)


def test_a_long_job_keeps_its_lease_and_runs_once(corner: Corner, trace: Trace) -> None:
    """Longer than a lease, in a body that holds the GIL all the time."""
    with worker("default", *TASKS, "-c", "1", env=corner.env), relay(env=corner.env):
        done = ends(enqueue(surviving_tasks.busy, {"note": "x", "seconds": 18}).job_id)
    assert (done.state, done.crashes) == (State.SUCCEEDED, 0)
    assert trace.notes == ["x begins", "x ends"]


def test_an_adopted_message_keeps_its_lease_and_its_killed_child_is_noticed(
    corner: Corner, trace: Trace
) -> None:
    """Longer than a lease of 3 s and the time a relay waits; its message bears no number."""
    site = {**corner.env, "DJANGO_SETTINGS_MODULE": "tests.short_lease"}
    with worker("default", *TASKS, "-c", "1", env=site), relay(env=site):
        job_id = UUID(corner.send_task("s.slow", "x", 10))
        begins(trace, "x begins")
        time.sleep(8)
        assert (job(job_id).state, job(job_id).crashes) == (State.RUNNING, 0)
        os.kill(trace.pids[-1], signal.SIGKILL)
        wait_until(lambda: job(job_id).crashes == 1, within_s=2, what="it is noticed")


def test_a_body_that_keeps_its_row_locked_is_not_rescued_and_stops_nobody(
    corner: Corner, trace: Trace
) -> None:
    """Neither the relay, nor the renewals and the beat of its own worker."""
    site = {**corner.env, "DJANGO_SETTINGS_MODULE": "tests.short_lease"}
    with worker("default", *TASKS, "-c", "2", env=site), relay(env=site):
        locks = enqueue(surviving_tasks.locks_its_row, {"note": "x", "seconds": 10}).job_id
        begins(trace, "x begins")
        time.sleep(6.5)
        other = enqueue(surviving_tasks.slow, {"note": "y", "seconds": 0}).job_id
        assert ends(other, within_s=3).state == State.SUCCEEDED
        beat_age = execute("SELECT max(clock_timestamp() - last_beat) FROM tasks_worker")[0][0]
        assert beat_age.total_seconds() < 6.5
        done = ends(locks)
    assert (done.state, done.crashes) == (State.SUCCEEDED, 0)
    assert trace.notes.count("x begins") == 1


def test_a_killed_child_is_noticed_at_once_by_its_parent(corner: Corner, trace: Trace) -> None:
    with worker("default", *TASKS, "-c", "1", env=corner.env), relay(env=corner.env):
        job_id = enqueue(surviving_tasks.slow, {"note": "x", "seconds": 3}).job_id
        begins(trace, "x begins")
        killed_at = time.monotonic()
        os.kill(trace.pids[-1], signal.SIGKILL)
        begins(trace, "x begins", 2)
        assert time.monotonic() - killed_at < 5
        assert ends(job_id).crashes == 1


def test_a_frozen_worker_that_wakes_after_its_lease_cannot_write_and_is_ended(
    corner: Corner, trace: Trace
) -> None:
    with worker("default", *TASKS, "-c", "1", env=corner.env) as frozen, relay(env=corner.env):
        job_id = enqueue(surviving_tasks.slow, {"note": "x", "seconds": 25}).job_id
        begins(trace, "x begins")
        child = trace.pids[-1]
        for pid in (frozen.pid, child):
            os.kill(pid, signal.SIGSTOP)
        with worker("default", *TASKS, "-c", "1", name="w2", env=corner.env):
            begins(trace, "x begins", 2)
            for pid in (child, frozen.pid):
                os.kill(pid, signal.SIGCONT)
            wait_until(lambda: not alive(child), within_s=2.0, what="the stale run is ended")
            done = ends(job_id)
        wait_until(lambda: "lost_run_ended" in frozen.log)
    assert (done.state, done.crashes) == (State.SUCCEEDED, 1)
    assert Attempt.objects.filter(job=done).count() == 1
    assert trace.notes.count("x ends") == 1


def test_a_running_job_is_told_that_it_is_cancelled(corner: Corner, trace: Trace) -> None:
    with worker("default", *TASKS, "-c", "1", env=corner.env), relay(env=corner.env):
        job_id = enqueue(surviving_tasks.checking, {"note": "x", "seconds": 60}).job_id
        begins(trace, "x begins")
        assert ledger.cancel(job_id, actor="ann", reason="stop") == State.RUNNING
        assert ends(job_id, within_s=10).state == State.CANCELLED
    assert trace.notes[-1] == "x Cancelled"


# --- stopping --------------------------------------------------------------------------------


@pytest.mark.alone
@pytest.mark.parametrize("task", ["checking", "slow"])
def test_a_stopping_worker_gives_back_what_does_not_end_and_the_next_goes_on(
    task: str, corner: Corner, trace: Trace
) -> None:
    """Gone within drain + 4 s, no attempt spent, and the checkpoint is there."""
    body = getattr(surviving_tasks, task)
    site = {**corner.env, "DJANGO_SETTINGS_MODULE": "tests.short_drain"}
    with relay(env=corner.env):
        with worker("default", *TASKS, "-c", "1", env=site) as process:
            job_id = enqueue(body, {"note": "x", "seconds": 30}).job_id
            begins(trace, "x begins")
            asked_at = time.monotonic()
            process.send(signal.SIGTERM)
            assert process.wait(within_s=9) == 0
            assert time.monotonic() - asked_at < 5 + 4
            given = job(job_id)
            assert (given.state, given.attempts, given.crashes) == (State.QUEUED, 0, 0)
            assert given.checkpoint == {"note": "x"}
            assert str(job_id) in str(Worker.objects.get(name="worker@test").given_back)
        execute('UPDATE tasks_job SET payload = \'{"note": "x", "seconds": 0}\'')
        with worker("default", *TASKS, "-c", "1", name="w2", env=corner.env):
            done = ends(job_id)
    assert (done.state, done.attempts, done.crashes) == (State.SUCCEEDED, 1, 0)
    assert "x resumes" in trace.notes


def test_a_stopping_worker_lets_runs_end_that_end_in_time(corner: Corner, trace: Trace) -> None:
    with worker("default", *TASKS, "-c", "1", env=corner.env) as process, relay(env=corner.env):
        job_id = enqueue(surviving_tasks.slow, {"note": "x", "seconds": 3}).job_id
        begins(trace, "x begins")
        process.send(signal.SIGTERM)
        waits = enqueue(surviving_tasks.slow, {"note": "waits", "seconds": 0}).job_id
        assert process.wait(within_s=15) == 0
        assert job(job_id).state == State.SUCCEEDED
        assert "waits begins" not in trace.notes
        assert job(waits).state in (State.QUEUED, State.DISPATCHED)


@pytest.mark.parametrize("kind", ["ledger", "plain"])
def test_what_ends_while_its_worker_stops_is_acked_and_does_not_run_again(
    kind: str, corner: Corner, trace: Trace
) -> None:
    """The next worker gets back after 2 s what the first has left unacked."""
    options = ("-I", "tests.surviving_tasks,tests.plain_tasks,tests.short_visibility", "-c", "1")
    with relay(env=corner.env):
        with worker("default", *options, env=corner.env) as process:
            if kind == "ledger":
                enqueue(surviving_tasks.slow, {"note": "x", "seconds": 5})
            else:
                corner.send_task("plain.trace_and_sleep", "x begins", 5)
            begins(trace, "x begins")
            time.sleep(2)
            process.send(signal.SIGTERM)
            assert process.wait(within_s=15) == 0
        assert corner.unacked() == corner.waiting() == 0
        ended = trace.notes
        with worker("default", *options, name="w2", env=corner.env):
            time.sleep(6)
    assert trace.notes == ended
    assert len(ended) == 2
    assert {(row.state, row.attempts) for row in Job.objects.all()} <= {(State.SUCCEEDED, 1)}


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGQUIT])
def test_a_second_signal_does_not_wait_for_the_drain_deadline(
    second: signal.Signals, corner: Corner, trace: Trace
) -> None:
    with worker("default", *TASKS, "-c", "1", env=corner.env) as process, relay(env=corner.env):
        job_id = enqueue(surviving_tasks.slow, {"note": "x", "seconds": 30}).job_id
        begins(trace, "x begins")
        process.send(signal.SIGTERM)
        wait_until(lambda: Worker.objects.filter(draining=True).exists())
        asked_at = time.monotonic()
        process.send(second)
        process.wait(within_s=10)
        assert time.monotonic() - asked_at < 8
        assert (job(job_id).state, job(job_id).attempts, job(job_id).crashes) == ("queued", 0, 0)


# --- what survives a run ---------------------------------------------------------------------


def test_a_step_is_done_once_and_an_ambiguous_one_is_told(corner: Corner, trace: Trace) -> None:
    """The first run dies inside its second step; the next one keeps the first and asks."""
    with worker("default", *TASKS, "-c", "1", env=corner.env), relay(env=corner.env):
        done = ends(enqueue(surviving_tasks.stepping, {"note": "x"}).job_id)
    assert (done.state, done.crashes, done.result) == (State.SUCCEEDED, 1, ["one", "asked"])
    assert trace.notes == ["one", "two begins", "two is ambiguous"]
    assert Step.objects.filter(job=done, done_at__isnull=False).count() == 2
    assert [row.data for row in Output.objects.filter(job=done).order_by("seq")] == ["a", "b"]


@pytest.mark.parametrize("dies", [False, True])
def test_an_atomic_task_has_its_effects_exactly_once(
    dies: bool, corner: Corner, trace: Trace
) -> None:
    with worker("default", *TASKS, "-c", "1", env=corner.env), relay(env=corner.env):
        payload = {"note": "x", "dies_first": dies}
        done = ends(enqueue(surviving_tasks.all_or_nothing, payload).job_id)
    assert (done.state, done.crashes) == (State.SUCCEEDED, int(dies))
    assert trace.notes == ["x"]


def test_an_atomic_body_that_fails_leaves_no_effect(corner: Corner, trace: Trace) -> None:
    with worker("default", *TASKS, "-c", "1", env=corner.env), relay(env=corner.env):
        done = ends(enqueue(surviving_tasks.all_or_nothing, {"note": "x", "fails": True}).job_id)
    assert (done.state, done.failure) == (State.FAILED, "error")
    assert trace.notes == []


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
