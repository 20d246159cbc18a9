"""Jobs that share a message, on real workers: each keeps its own fate.

What really ran is read from the table ``trace``, never from the ledger alone.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.db import transaction

from devtools.bench.cpu import children_of
from tasks import ledger
from tasks.enqueue import enqueue, enqueue_many
from tasks.ledger import Dispatched
from tasks.models import Attempt, Job, Worker
from tasks.publish import headers_of, headers_of_batch
from tasks.topology import STOP_OVERHEAD_S
from tests import batched_tasks
from tests.broker import Corner, Trace, trace_table
from tests.processes import Process, relay, wait_until, worker
from tests.sample_shop import tasks as shop

OPTIONS = ("-I", "tests.batched_tasks", "-c", "1")
SETTINGS = {"DJANGO_SETTINGS_MODULE": "tests.batched_settings"}
WITHIN_S = 40.0
DRAIN_S = 4  # of tests.batched_settings

pytestmark = [pytest.mark.timeout(120), pytest.mark.django_db(transaction=True)]


@pytest.fixture
def corner() -> Iterator[Corner]:
    corner = Corner()
    corner.env = {**corner.env, **SETTINGS}
    yield corner
    corner.clear()


@pytest.fixture
def trace() -> Iterator[Trace]:
    with trace_table() as trace:
        yield trace


def accept(task: Any, items: Sequence[Any]) -> list[UUID]:
    answers: Any = enqueue_many(task, items)
    return [answer.job_id for answer in answers]


def dispatched(number: int, queue: str = "default") -> list[Dispatched]:
    found = ledger.dispatch(queue, number)
    assert len(found) == number
    return found


def send(corner: Corner, jobs: Sequence[Dispatched], queue: str = "default") -> None:
    """As the relay would have done it."""
    hard_s = 2 if jobs[0].task == "b.limited" else 30
    corner.send([[], {}, {}], headers=headers_of_batch(jobs, (hard_s, None)), queue=queue)


def together(corner: Corner, task: Any, items: Sequence[Any], queue: str = "default") -> list[UUID]:
    """Jobs that are on the broker in one message."""
    ids = accept(task, items)
    send(corner, dispatched(len(ids), queue), queue)
    return ids


def rows(ids: Sequence[UUID]) -> list[Job]:
    found = {job.id: job for job in Job.objects.filter(id__in=ids)}
    return [found[job_id] for job_id in ids]


def states(ids: Sequence[UUID]) -> list[str]:
    return [job.state for job in rows(ids)]


def wait_for(ids: Sequence[UUID], *wanted: str) -> None:
    def all_are() -> bool:
        return set(states(ids)) <= set(wanted)

    wait_until(all_are, within_s=WITHIN_S, what=f"all are {wanted}, not {Counter(states(ids))}")


def has_begun(trace: Trace, note: str) -> None:
    wait_until(lambda: f"{note} begins" in trace.notes, within_s=WITHIN_S, what=f"{note} begins")


# --- outcomes ------------------------------------------------------------------------------


def test_each_job_of_a_batch_has_its_own_outcome(corner: Corner, trace: Trace) -> None:
    hows = ["", "fail", "retry", "snooze", "large", ""]
    items = [{"note": f"n{n}", "how": how} for n, how in enumerate(hows)]
    ids = together(corner, batched_tasks.play, items)
    with worker("default", *OPTIONS, env=corner.env):
        wait_for(ids, "succeeded", "failed", "queued")
        wait_until(lambda: corner.unacked() == 0, what="the message is acked")
    jobs = rows(ids)
    assert [job.state for job in jobs] == [
        "succeeded", "failed", "queued", "queued", "succeeded", "succeeded",
    ]  # fmt: skip
    assert [job.attempts for job in jobs] == [1, 1, 1, 0, 1, 1]
    assert [job.fence for job in jobs] == [1] * len(jobs)
    assert [jobs[0].result, jobs[4].result, jobs[5].result] == ["n0", "n4" * 20_000, "n5"]
    assert jobs[1].error_message == "n1"
    outcomes = dict(Attempt.objects.values_list("job_id", "outcome"))
    assert [outcomes.get(job_id) for job_id in ids] == [
        "succeeded", "failed", "retry", None, "succeeded", "succeeded",
    ]  # fmt: skip
    assert Counter(note for note in trace.notes if note.endswith("begins")) == {
        f"n{n} begins": 1 for n in range(len(hows))
    }


def test_an_attempt_has_the_time_of_its_own_body(corner: Corner, trace: Trace) -> None:
    items = [{"note": "n", "seconds": 0.2}, {"note": "n"}, {"note": "n", "seconds": 0.2}]
    ids = together(corner, batched_tasks.play, items)
    with worker("default", *OPTIONS, env=corner.env):
        wait_for(ids, "succeeded")
    first, second, third = (Attempt.objects.get(job_id=job_id) for job_id in ids)
    assert (first.finished_at - first.started_at).total_seconds() >= 0.2
    assert (second.finished_at - second.started_at).total_seconds() < 0.2
    assert first.finished_at <= second.started_at <= third.started_at


def test_success_signals_name_the_jobs(corner: Corner, trace: Trace) -> None:
    ids = together(corner, batched_tasks.play, [{"note": "signal"}] * 3)
    with worker("default", *OPTIONS, env=corner.env):
        wait_for(ids, "succeeded")
    assert [note for note in trace.notes if note.startswith("success")] == [
        f"success of {job_id}" for job_id in ids
    ]


def test_an_outcome_is_written_while_the_next_body_lasts(corner: Corner, trace: Trace) -> None:
    items = [{"note": "short"}, {"note": "long", "seconds": 3}]
    short, long = together(corner, batched_tasks.play, items)
    with worker("default", *OPTIONS, env=corner.env):
        wait_for([short], "succeeded")
        assert "long ends" not in trace.notes
        wait_for([long], "succeeded")


def test_a_message_that_comes_twice_runs_nothing_twice(corner: Corner, trace: Trace) -> None:
    ids = accept(batched_tasks.play, [{"note": f"n{n}"} for n in range(20)])
    jobs = dispatched(20)
    for _ in range(3):
        send(corner, jobs)
    with worker("default", "-I", "tests.batched_tasks", "-c", "2", env=corner.env):
        wait_for(ids, "succeeded")
        wait_until(lambda: corner.waiting() + corner.unacked() == 0, what="all are acked")
    assert Counter(trace.notes) == Counter(
        f"n{n} {what}" for n in range(20) for what in ("begins", "ends")
    )
    assert {job.fence for job in rows(ids)} == {1}


# --- what has not started goes back -----------------------------------------------------------


def test_what_waits_behind_a_long_body_goes_back(corner: Corner, trace: Trace) -> None:
    items = [{"note": "long", "seconds": 6}, *({"note": f"n{n}"} for n in range(5))]
    long, *others = together(corner, batched_tasks.play, items)
    with worker("default", *OPTIONS, env=corner.env):
        has_begun(trace, "long")
        wait_for(others, "queued")
        assert "long ends" not in trace.notes
        assert {(job.attempts, job.crashes, job.started_at) for job in rows(others)} == {
            (0, 0, None)
        }
        wait_for([long], "succeeded")


def test_a_draining_worker_gives_back_what_has_not_started(corner: Corner, trace: Trace) -> None:
    items = [{"note": f"n{n}", "seconds": 0.3} for n in range(50)]
    ids = together(corner, batched_tasks.play, items)
    with worker("default", *OPTIONS, env=corner.env) as process:
        has_begun(trace, "n0")
        process.send(signal.SIGTERM)
        assert process.wait(within_s=30) == 0
    found = Counter(states(ids))
    assert found["succeeded"] == sum(note.endswith("ends") for note in trace.notes) < 10
    assert found["queued"] == 50 - found["succeeded"]
    back = [job for job in rows(ids) if job.state == "queued"]
    assert {(job.attempts, job.crashes, job.started_at) for job in back} == {(0, 0, None)}


def test_a_job_that_is_cancelled_before_its_turn_does_not_run(corner: Corner, trace: Trace) -> None:
    items = [{"note": "first", "seconds": 0.9}, {"note": "second"}, {"note": "third"}]
    first, second, _ = together(corner, batched_tasks.play, items)
    with worker("default", *OPTIONS, env=corner.env):
        has_begun(trace, "first")
        ledger.cancel(second, actor="test")
        wait_for([first], "succeeded")
        wait_for([second], "cancelled")
    assert "second begins" not in trace.notes


def test_a_pause_of_the_downstream_stops_the_rest_of_the_batch(
    corner: Corner, trace: Trace
) -> None:
    items = [{"note": "1"}, {"note": "2", "pauses": True}, {"note": "3"}, {"note": "4"}]
    ids = together(corner, batched_tasks.pausing, items, "limited")
    with worker("limited", *OPTIONS, env=corner.env):
        wait_for(ids[:2], "succeeded")
        wait_for(ids[2:], "queued")
    assert trace.notes == ["1", "2"]


# --- crashes -------------------------------------------------------------------------------------


def test_a_killer_in_a_batch_of_fifty_ends_only_itself(corner: Corner, trace: Trace) -> None:
    items = [{"note": f"n{n}", "how": "kill" if n == 25 else ""} for n in range(50)]
    ids = together(corner, batched_tasks.play, items)
    killer = ids.pop(25)
    with worker("default", *OPTIONS, env=corner.env), relay(env=corner.env):
        wait_for([killer], "failed")
        wait_for(ids, "succeeded")
    job = Job.objects.get(id=killer)
    assert (job.failure, job.dead_letter) == ("poison", True)
    # Once with others, which does not count, and then alone.
    assert (job.crashes, job.crashes_in_batch) == (4, 1)
    # What had ended before it was not lost with its process, and what came after had not begun.
    assert {(other.crashes, other.attempts) for other in rows(ids)} == {(0, 1)}
    begun = Counter(note for note in trace.notes if note.endswith("begins"))
    assert begun.pop("n25 begins") == 4
    assert set(begun.values()) == {1}


def test_after_the_death_of_a_worker_all_run_again(corner: Corner, trace: Trace) -> None:
    items = [{"note": f"n{n}", "seconds": 0.03} for n in range(20)]
    ids = together(corner, batched_tasks.play, items)
    with worker("default", *OPTIONS, name="first", env=corner.env) as first:
        has_begun(trace, "n5")
        kill_all(first)
    with (
        worker("default", *OPTIONS, name="second", env=corner.env),
        relay(env=corner.env),
    ):
        wait_for(ids, "succeeded")
    jobs = rows(ids)
    assert {job.attempts for job in jobs} == {1}
    assert {job.crashes for job in jobs} <= {0, 1}
    assert all(job.crashes == job.crashes_in_batch for job in jobs)


def test_a_hard_time_limit_ends_only_the_job_that_exceeds_it(corner: Corner, trace: Trace) -> None:
    items = [{"note": "1"}, {"note": "2", "seconds": 60}, {"note": "3"}, {"note": "4"}]
    ids = together(corner, batched_tasks.limited, items)
    with worker("default", *OPTIONS, env=corner.env):
        wait_for(ids[1:2], "failed")
        wait_for(ids[:1], "succeeded")
        wait_for(ids[2:], "queued")
    jobs = rows(ids)
    assert jobs[1].failure == "time_limit"
    assert [job.crashes for job in jobs] == [0, 0, 0, 0]


def kill_all(process: Process) -> None:
    """The worker and its children at once, as the end of a machine does."""
    for pid in (process.pid, *children_of(process.pid)):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


# --- other workers --------------------------------------------------------------------------------


def test_a_worker_that_does_not_know_the_task_holds_all_of_them(corner: Corner) -> None:
    ids = together(corner, batched_tasks.play, [{"note": "n"}] * 5)
    with worker("default", "-c", "1", env=corner.env):
        wait_for(ids, "queued")
    assert {job.hold_reason for job in rows(ids)} == {"task unknown"}


def test_a_worker_that_knows_no_batches_runs_nothing_and_loses_nothing(
    corner: Corner, trace: Trace
) -> None:
    ids = accept(batched_tasks.play, [{"note": "n"}] * 5)
    headers = headers_of_batch(dispatched(5), (30, None))
    del headers["batch"]  # what a release before batches makes of it
    corner.send([[], {}, {}], headers=headers)
    with worker("default", *OPTIONS, env=corner.env):
        wait_until(lambda: corner.waiting() + corner.unacked() == 0, within_s=WITHIN_S)
    assert set(states(ids)) == {"dispatched"}  # the relay sends them again
    assert trace.notes == []
    assert Job.objects.count() == 5


def test_a_batch_of_a_newer_format_is_held_whole(corner: Corner, trace: Trace) -> None:
    ids = accept(batched_tasks.play, [{"note": "n"}] * 5)
    corner.send([[], {}, {}], headers=headers_of_batch(dispatched(5), (30, None)) | {"v": 99})
    with worker("default", *OPTIONS, env=corner.env):
        wait_for(ids, "queued")
    assert all(job.hold_reason.startswith("incompatible") for job in rows(ids))
    assert trace.notes == []


def test_two_runs_of_one_message_share_nothing_but_its_name(
    corner: Corner, trace: Trace, tmp_path: Path
) -> None:
    """Its broker delivers it twice, while a row is locked: each run claims a part of it."""
    path = tmp_path / "go"
    ids = accept(batched_tasks.holds, [{"note": f"n{n}", "path": str(path)} for n in range(2)])
    jobs = dispatched(2)
    headers = headers_of_batch(jobs, (30, None))
    with worker("default", "-I", "tests.batched_tasks", "-c", "2", env=corner.env):
        with transaction.atomic():
            Job.objects.select_for_update().get(id=ids[1])
            corner.send([[], {}, {}], headers=headers)
            has_begun(trace, "n0")
        corner.send([[], {}, {}], headers=headers)
        has_begun(trace, "n1")
        begun = {job.id: job.lease_expires_at for job in rows(ids)}
        wait_until(
            lambda: all(job.lease_expires_at > begun[job.id] for job in rows(ids)),
            within_s=WITHIN_S, what="both leases are renewed",
        )  # fmt: skip
        os.kill(pid_of(trace, "n1"), signal.SIGKILL)
        wait_for(ids[1:], "queued")
        assert states(ids[:1]) == ["running"]
        path.touch()
        wait_for(ids[:1], "succeeded")
    assert [(job.fence, job.crashes) for job in rows(ids)] == [(1, 0), (1, 1)]


def pid_of(trace: Trace, note: str) -> int:
    marks = [mark for mark in trace.notes if mark.startswith(f"pid of {note}: ")]
    return int(marks[0].rpartition(" ")[2])


# --- coroutines -----------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """What coroutines wait for."""
    return tmp_path / "go"


def waiting(path: Path, number: int, note: str = "w") -> list[dict[str, str]]:
    return [{"note": f"{note}{n}", "path": str(path)} for n in range(number)]


def quick(number: int, note: str) -> list[dict[str, str]]:
    return [{"note": f"{note}{n}"} for n in range(number)]


def begun(trace: Trace, note: str) -> int:
    return sum(one.startswith(note) for one in trace.notes)


def all_have_begun(trace: Trace, note: str, number: int) -> None:
    wait_until(lambda: begun(trace, note) == number, within_s=WITHIN_S, what=f"{note} have begun")


def alone(corner: Corner, item: dict[str, str]) -> UUID:
    """A job that is on the broker in a message of its own."""
    [job_id] = accept(batched_tasks.waits_for, [item])
    [job] = dispatched(1, "webhooks")
    headers = headers_of(job.task, str(job.id), job.dispatch_no, (30, None))
    corner.send([[], {}, {}], headers=headers, queue="webhooks")
    return job_id


def coroutines_worker(corner: Corner) -> AbstractContextManager[Process]:
    return worker("webhooks", "-I", "tests.batched_tasks", env=corner.env)


def test_one_slow_coroutine_keeps_no_other_message_waiting(
    corner: Corner, trace: Trace, path: Path
) -> None:
    items = [*waiting(path, 1), *quick(49, "first")]
    slow, *others = together(corner, batched_tasks.waits_for, items, "webhooks")
    with coroutines_worker(corner):
        wait_for(others, "succeeded")
        others += together(corner, batched_tasks.waits_for, quick(49, "next"), "webhooks")
        others += together(corner, batched_tasks.waits_for, quick(2, "two"), "webhooks")
        others.append(alone(corner, {"note": "alone"}))
        wait_for(others, "succeeded")
        assert states([slow]) == ["running"]
        path.touch()
        wait_for([slow], "succeeded")
    assert {job.fence for job in rows([slow, *others])} == {1}


def test_what_has_no_slot_is_not_claimed_and_goes_back(
    corner: Corner, trace: Trace, path: Path
) -> None:
    """So neither its time limit nor its lease begins."""
    busy = together(corner, batched_tasks.waits_for, waiting(path, 50), "webhooks")
    with coroutines_worker(corner):
        all_have_begun(trace, "w", 50)
        wait_until(lambda: Worker.objects.get().busy == 50, within_s=WITHIN_S, what="all are busy")
        late = [alone(corner, {"note": "late"})]
        late += together(corner, batched_tasks.waits_for, quick(20, "late"), "webhooks")
        wait_for(late, "queued")
        path.touch()
        wait_for(busy, "succeeded")
    assert begun(trace, "late") == 0
    assert {(job.fence, job.started_at, job.returned_since) for job in rows(late)} == {
        (0, None, None)
    }


def test_a_batch_starts_as_many_as_have_a_slot(corner: Corner, trace: Trace, path: Path) -> None:
    busy = together(corner, batched_tasks.waits_for, waiting(path, 45), "webhooks")
    with coroutines_worker(corner), relay(env=corner.env):
        all_have_begun(trace, "w", 45)
        ids = together(corner, batched_tasks.waits_for, waiting(path, 10, "n"), "webhooks")
        all_have_begun(trace, "n", 5)
        assert set(states(ids[:5])) == {"running"}
        assert set(states(ids[5:])) <= {"queued", "dispatched"}
        path.touch()
        wait_for([*busy, *ids], "succeeded")
    assert {(job.fence, job.crashes) for job in rows(ids)} == {(1, 0)}


def test_a_draining_worker_gives_back_what_waits_for_slots(
    corner: Corner, trace: Trace, path: Path
) -> None:
    together(corner, batched_tasks.waits_for, waiting(path, 50), "webhooks")
    with coroutines_worker(corner) as process:
        all_have_begun(trace, "w", 50)
        late = together(corner, batched_tasks.waits_for, quick(20, "late"), "webhooks")
        late.append(alone(corner, {"note": "late"}))
        wait_until(lambda: corner.waiting() == 0, within_s=WITHIN_S, what="they are received")
        process.send(signal.SIGTERM)
        wait_for(late, "queued")
        path.touch()
        assert process.wait(within_s=30) == 0
    assert begun(trace, "late") == 0
    assert {(job.fence, job.crashes) for job in rows(late)} == {(0, 0)}


def test_coroutines_of_a_batch_run_at_once(corner: Corner, trace: Trace) -> None:
    items = [{"note": f"n{n}", "seconds": 1.0} for n in range(50)]
    ids = together(corner, batched_tasks.waits, items, "webhooks")
    with worker("webhooks", "-I", "tests.batched_tasks", env=corner.env):
        wait_for(ids, "succeeded")
    notes = trace.notes
    first_end = min(n for n, note in enumerate(notes) if note.endswith("ends"))
    assert sum(note.endswith("begins") for note in notes[:first_end]) > 25
    assert [job.result for job in rows(ids)] == [str(job_id) for job_id in ids]


def test_a_stopped_worker_names_every_coroutine_that_it_gives_back(
    corner: Corner, trace: Trace
) -> None:
    """Taken and not done: neither the pool nor the batch may wait for them beyond the drain."""
    ids = together(
        corner,
        batched_tasks.waits,
        [{"note": f"n{n}", "seconds": 300} for n in range(40)],
        "webhooks",
    )
    with worker("webhooks", "-I", "tests.batched_tasks", env=corner.env) as process:
        wait_until(lambda: len(trace.notes) == 40, within_s=WITHIN_S, what="all have begun")
        process.send(signal.SIGTERM)
        process.wait(within_s=DRAIN_S + STOP_OVERHEAD_S + 10)
    assert {(job.state, job.attempts, job.crashes) for job in rows(ids)} == {("queued", 0, 0)}
    given_back: Any = Worker.objects.get().given_back
    assert set(given_back) == set(map(str, ids))


def test_a_body_that_outlasts_the_drain_is_given_back_like_the_rest(
    corner: Corner, trace: Trace
) -> None:
    items = [{"note": "short"}, {"note": "long", "seconds": 300}, {"note": "never"}]
    ids = together(corner, batched_tasks.play, items)
    with worker("default", *OPTIONS, env=corner.env) as process:
        has_begun(trace, "long")
        process.send(signal.SIGTERM)
        process.wait(within_s=DRAIN_S + STOP_OVERHEAD_S + 10)
    assert states(ids) == ["succeeded", "queued", "queued"]
    assert [job.crashes for job in rows(ids)] == [0, 0, 0]


# --- the relay ------------------------------------------------------------


def test_the_relay_sends_batches_once_it_knows_how_long_they_take(corner: Corner) -> None:
    with worker("default", *OPTIONS, env=corner.env), relay(env=corner.env):
        first = enqueue(shop.add, {"x": 1, "y": 2}).job_id
        wait_for([first], "succeeded")
        ids: list[UUID] = []

        def some_shared_a_message() -> bool:
            ids.extend(accept(shop.add, [{"x": n, "y": 1} for n in range(40)]))
            wait_for(ids, "succeeded")
            return Job.objects.filter(batched=True).exists()

        wait_until(some_shared_a_message, within_s=WITHIN_S)
    assert not Job.objects.get(id=first).batched
    assert [job.result for job in rows(ids)] == [n % 40 + 1 for n in range(len(ids))]
    assert {(job.attempts, job.crashes) for job in rows(ids)} == {(1, 0)}
