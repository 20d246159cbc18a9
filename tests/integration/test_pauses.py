"""What operators pause does not run, spends nothing, and goes on afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import transaction

from tasks import execute as runs
from tasks import ledger, limits, pauses
from tasks.dispatch import Slots, dispatch
from tasks.errors import RetryAfter
from tasks.ledger import Claim, Dispatched
from tasks.models import Job, Limit, Pause
from tasks.run import NO_RUN, Run, active, current_run
from tasks.states import Hold, Pausable, State
from tasks.topology import Downstream, Queue, Topology
from tests.broker import execute
from tests.job_rows import job_row

pytestmark = pytest.mark.django_db(transaction=True)

BANK = Downstream("bank", max_concurrency=20)
TOPOLOGY = Topology.of([Queue("limited", BANK), Queue("refunds", BANK), Queue("default")])
MANY = Slots(1_000, 1_000)
QUEUE, TASK, TENANT = Pausable.QUEUE, Pausable.TASK, Pausable.TENANT


@pytest.fixture(autouse=True)
def topology(settings: Any) -> Iterator[None]:
    settings.TASKS_TOPOLOGY = TOPOLOGY
    pauses.forget()
    yield
    pauses.forget()


def go(queue: str = "default") -> list[Dispatched]:
    if pauses.is_queue_paused(queue):
        return []
    found = TOPOLOGY.queue(queue)
    return dispatch(TOPOLOGY, found, MANY, paused_tasks=pauses.paused_tasks())


def pause(kind: Pausable, name: str, **options: Any) -> bool:
    return pauses.pause(kind, name, actor="ann", **options)


def resume(kind: Pausable, name: str) -> bool:
    return pauses.resume(kind, name, actor="ann")


def keep(limit: int = 10) -> int:
    """A relay that has just begun: it looks at all."""
    return pauses.Keeper().keep(limit)


def reasons() -> list[str]:
    return list(Job.objects.order_by("seq").values_list("hold_reason", flat=True))


# --- pause and resume --------------------------------------------------------------------


def test_a_pause_says_whether_it_is_new_and_a_resume_whether_there_was_one() -> None:
    assert pause(QUEUE, "default", reason="maintenance")
    assert not pause(QUEUE, "default", reason="longer", closed=True)
    [row] = pauses.listed()
    assert (row.kind, row.name, row.reason, row.closed) == (QUEUE, "default", "longer", True)
    assert row.actor == "ann"
    assert resume(QUEUE, "default")
    assert not resume(QUEUE, "default")
    assert pauses.listed() == []


def test_a_pause_whose_time_is_over_counts_as_none() -> None:
    over = datetime.now(UTC) - timedelta(seconds=1)
    assert pause(TENANT, "acme", until=over)
    assert pauses.current().tenants == frozenset()
    assert pause(TENANT, "acme")
    assert pauses.current().tenants == {"acme"}
    pause(TENANT, "acme", until=over)
    assert not resume(TENANT, "acme")


def test_a_pause_ends_by_itself_and_leaves_the_table() -> None:
    job_row()
    pause(QUEUE, "default", until=datetime.now(UTC) + timedelta(seconds=60))
    assert go() == []
    execute("UPDATE tasks_pause SET until = clock_timestamp()")
    pauses.forget()
    assert len(go()) == 1
    keep(10)
    assert not Pause.objects.exists()


def test_only_a_closed_queue_is_closed() -> None:
    pause(QUEUE, "default")
    assert pauses.current().closed == frozenset()
    pause(QUEUE, "default", closed=True)
    assert pauses.current().closed == {"default"}


def test_a_process_believes_what_it_has_read_for_a_second(django_assert_num_queries: Any) -> None:
    pauses.current()
    with django_assert_num_queries(0):
        for _ in range(100):
            pauses.is_queue_paused("default")
            pauses.paused_tasks()


# --- what does not run -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "name"), [(QUEUE, "default"), (TASK, "t.trace"), (TENANT, "acme")]
)
def test_a_paused_job_is_not_sent_and_goes_when_it_is_resumed(kind: Pausable, name: str) -> None:
    job_row(tenant="acme")
    pause(kind, name)
    assert go() == []
    keep(10)
    assert go() == []
    assert resume(kind, name)
    keep(10)
    [job] = go()
    kept = Job.objects.get(id=job.id)
    assert (kept.attempts, kept.crashes, kept.hold_reason) == (0, 0, "")


@pytest.mark.parametrize(
    ("kind", "name"), [(QUEUE, "default"), (TASK, "t.trace"), (TENANT, "acme")]
)
def test_what_was_sent_and_has_not_started_is_taken_back(kind: Pausable, name: str) -> None:
    job_row(tenant="acme")
    other = job_row(queue="refunds", task="t.other", tenant="globex")
    [job] = go()
    [kept] = go("refunds")
    pause(kind, name)
    assert Job.objects.get(id=job.id).state == State.QUEUED
    assert ledger.claim(job.id, job.dispatch_no, worker="w", release="", lease_s=9) is None
    assert kept.id == other.id
    assert Job.objects.get(id=kept.id).state == State.DISPATCHED


def test_what_a_relay_sent_before_it_knew_is_taken_back_in_the_next_second() -> None:
    job_row(tenant="acme")
    assert len(go()) == 1
    Pause.objects.create(kind=TENANT, name="acme", actor="ann")
    pauses.forget()
    keep(10)
    assert Job.objects.get().state == State.QUEUED


def test_what_runs_is_left_alone() -> None:
    job_row(State.RUNNING, tenant="acme")
    for kind, name in ((QUEUE, "default"), (TASK, "t.trace"), (TENANT, "acme")):
        pause(kind, name)
    assert Job.objects.get().state == State.RUNNING


def test_other_tenants_and_tasks_of_the_queue_go_on() -> None:
    job_row(tenant="acme")
    job_row(tenant="globex")
    job_row(task="t.other", tenant="initech")
    pause(TENANT, "acme")
    pause(TASK, "t.other")
    [job] = go()
    assert Job.objects.get(id=job.id).tenant == "globex"


# --- a paused task is held ---------------------------------------------------------------


def test_jobs_of_a_paused_task_are_held_and_released_in_bounded_batches() -> None:
    for _ in range(5):
        job_row()
    pause(TASK, "t.trace")
    keep(3)
    assert reasons().count(Hold.PAUSED) == 3
    keep(3)
    job_row()  # arrives in the pause
    assert go() == []
    keep(3)
    assert reasons() == [Hold.PAUSED] * 6
    resume(TASK, "t.trace")
    assert [keep(4), keep(4), keep(4)] == [4, 2, 0]
    assert reasons() == [""] * 6
    assert len(go()) == 6


def test_a_relay_that_has_held_all_does_not_read_the_backlog_each_second() -> None:
    keeper = pauses.Keeper()
    job_row()
    pause(TASK, "t.trace")
    keeper.keep(10)
    job_row()
    keeper.keep(10)
    assert reasons() == [Hold.PAUSED, ""]
    assert go() == []  # and yet it is not sent
    pause(TASK, "t.other")
    keeper.keep(10)
    assert reasons() == [Hold.PAUSED] * 2


def test_only_what_is_resumed_is_released() -> None:
    first, second = job_row(task="t.a"), job_row(task="t.b")
    job_row(hold_reason=Hold.TASK_UNKNOWN, task="t.b")
    pause(TASK, "t.a")
    pause(TASK, "t.b")
    keep(10)
    resume(TASK, "t.b")
    assert keep(10) == 1
    assert Job.objects.get(id=first.id).hold_reason == Hold.PAUSED
    assert Job.objects.get(id=second.id).hold_reason == ""
    assert Hold.TASK_UNKNOWN in reasons()


def test_a_job_whose_time_has_not_come_is_not_held() -> None:
    job_row(due=False, run_at=datetime.now(UTC) + timedelta(hours=1))
    pause(TASK, "t.trace")
    keep(10)
    assert reasons() == [""]


# --- a body pauses its downstream --------------------------------------------------------


def a_run(queue: str = "limited") -> Run:
    job = job_row(State.RUNNING, queue=queue)
    claim = Claim(job.id, 1, "t", queue, "", "k", {}, None, 0, 0, 0, None, 0.0, 1, 15.0)
    return Run(claim, None)


def paused_s() -> float:
    return limits.status_of("downstream:bank").paused_s


def test_a_body_pauses_its_downstream_and_what_was_sent_comes_back() -> None:
    job_row(queue="refunds")
    [sent] = go("refunds")
    with active(a_run()):
        current_run().pause_downstream(30, "429")
    assert 29 < paused_s() <= 30
    assert Limit.objects.get().pause_reason == "429"
    assert Job.objects.get(id=sent.id).state == State.QUEUED
    assert go() == go("refunds") == []


def test_a_queue_without_downstream_says_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"config/topology.py: Queue\('default', downstream="):
        a_run("default").pause_downstream(30)


def test_outside_a_job_a_pause_is_inert() -> None:
    current_run().pause_downstream(30)
    NO_RUN.pause_downstream(30)
    assert not Limit.objects.exists()


class Body:
    """As much of a task as the pipeline looks at."""

    atomic = True
    sensitive = ()

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def run(self) -> None:
        current_run().pause_downstream(30, "said inside")
        assert paused_s() == 0
        if self.error:
            raise self.error


def test_a_pause_asked_for_in_a_transaction_holds_although_that_is_rolled_back() -> None:
    """And its row is not locked meanwhile, where every relay would wait for it."""
    run = a_run()
    run.task = Body(OSError("away"))
    with active(run), pytest.raises(OSError, match="away"):
        runs.run_body(run, (), {})
    assert 29 < paused_s() <= 30


def test_a_body_that_opens_a_transaction_itself_pauses_after_it() -> None:
    run = a_run()
    with active(run), transaction.atomic():
        current_run().pause_downstream(30)
        assert paused_s() == 0
    run.write_pause()
    assert paused_s() > 29


def test_retry_after_can_pause_the_downstream() -> None:
    run = a_run()
    runs.pause_for(run, RetryAfter(20, "slow down", pause_downstream=True))
    assert 19 < paused_s() <= 20
    runs.pause_for(run, RetryAfter(90, "only me"))
    assert paused_s() <= 20


def test_retry_after_on_a_queue_without_downstream_is_still_a_retry(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runs.pause_for(a_run("default"), RetryAfter(20, pause_downstream=True))
    assert "downstream_not_paused" in caplog.text
