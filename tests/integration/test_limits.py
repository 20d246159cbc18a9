"""Rates, pauses and the circuit breaker of a downstream, as the relays keep them in the ledger."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest
from celery import shared_task
from django.db import connection, transaction

from tasks import breaker, ledger, limits, pauses
from tasks.dispatch import Slots, dispatch
from tasks.enqueue import enqueue_many
from tasks.ledger import Dispatched, ErrorReport
from tasks.models import Job, Limit
from tasks.states import Failure, State
from tasks.task import LedgerTask
from tasks.topology import Breaker, Downstream, Queue, Topology
from tests.broker import execute
from tests.job_rows import job_row
from tests.ledger_tasks import limited

pytestmark = pytest.mark.django_db(transaction=True)

BANK = Downstream(
    "bank", rate="500/s", breaker=Breaker(failure_share=0.5, least_runs=4, open_s=10.0)
)
MAIL = Downstream("mail", breaker=None)
TOPOLOGY = Topology.of(
    [Queue("limited", BANK), Queue("refunds", BANK), Queue("mail", MAIL), Queue("default")]
)
LIMITED, MAILS, FREE = (TOPOLOGY.queue(name) for name in ("limited", "mail", "default"))
MANY = Slots(1_000, 1_000)


@shared_task(base=LedgerTask, name="limits.slowly", rate_limit="6/m")
def slowly(note: str) -> None: ...


@shared_task(base=LedgerTask, name="limits.quickly", rate_limit="10/s", queue="limited")
def quickly(note: str) -> None: ...


@pytest.fixture(autouse=True)
def topology(settings: Any) -> Iterator[None]:
    settings.TASKS_TOPOLOGY = TOPOLOGY
    pauses.forget()
    yield
    pauses.forget()


def waiting(count: int, **fields: Any) -> None:
    for n in range(count):
        job_row(**{"queue": "limited", "task": "t.limited", "idempotency_key": f"k{n}"} | fields)


def go(queue: Queue = LIMITED, lane: str = "") -> list[Dispatched]:
    return dispatch(TOPOLOGY, queue, MANY, lane=lane)


def limit() -> Limit:
    return Limit.objects.get(name="downstream:bank")


def end(job: Dispatched, outcome: str, error: str = "bank.BankUnavailable") -> None:
    """Claim and settle, as a worker would have."""
    claim = ledger.claim(job.id, job.dispatch_no, worker="w", release="", lease_s=15)
    assert claim is not None
    report = ErrorReport.of(error, "no")
    if outcome == "succeeded":
        assert ledger.succeed(job.id, claim.fence, result="null")
    elif outcome == "retry":
        assert ledger.retry(job.id, claim.fence, delay_s=0.0, error=report)
    elif outcome == "cancelled":
        assert ledger.end_cancelled(job.id, claim.fence)
    else:
        assert ledger.fail(job.id, claim.fence, failure=Failure.ERROR, error=report)


def pass_time(seconds: float) -> None:
    """For limits and attempts: everything in their rows is that much longer ago."""
    execute(
        "UPDATE tasks_limit SET tokens_at = tokens_at - %s * interval '1 second',"
        " paused_until = paused_until - %s * interval '1 second',"
        " open_until = open_until - %s * interval '1 second',"
        " probe_until = probe_until - %s * interval '1 second'", *[seconds] * 4,
    )  # fmt: skip
    execute(
        "UPDATE tasks_attempt SET started_at = started_at - %s * interval '1 second',"
        " finished_at = finished_at - %s * interval '1 second'", seconds, seconds,
    )  # fmt: skip


# --- rate --------------------------------------------------------------------------------


def test_a_burst_goes_at_once_and_the_rest_at_the_rate() -> None:
    waiting(90)
    burst = go()
    assert len(burst) == 50
    for job in burst:
        end(job, "succeeded")
    execute("UPDATE tasks_limit SET tokens = -100, tokens_at = clock_timestamp()")
    pass_time(0.22)
    assert 10 <= len(go()) <= 39
    assert limit().tokens < 40  # what has come since, not another burst


def test_relays_that_dispatch_at_the_same_time_share_one_rate() -> None:
    waiting(120)

    def relay() -> int:
        try:
            return sum(len(go(TOPOLOGY.queue("limited"))) for _ in range(3))
        finally:
            connection.close()

    with ThreadPoolExecutor(6) as pool:
        started = execute("SELECT clock_timestamp()")[0][0]
        sent = sum(pool.map(lambda _: relay(), range(6)))
    took_s = (execute("SELECT clock_timestamp()")[0][0] - started).total_seconds()
    assert 50 <= sent <= 50 + 500 * took_s


def test_a_limit_that_changed_in_the_topology_holds_at_once() -> None:
    execute("INSERT INTO tasks_limit (name, tokens) VALUES ('downstream:bank', 5000)")
    waiting(60)
    assert len(go()) == 50


def test_a_dispatch_that_rolls_back_takes_no_tokens() -> None:
    waiting(10)
    with transaction.atomic():
        assert len(go()) == 10
        transaction.set_rollback(True)
    assert not Limit.objects.exists()


def test_a_queue_without_downstream_costs_no_statement(
    django_assert_num_queries: Any,
) -> None:
    with django_assert_num_queries(0):
        assert limits.grant(FREE, "", 7) == 7
        limits.spend(FREE, "", [Dispatched(UUID(int=1), "t", 1)])


def test_a_task_with_a_rate_of_its_own_delays_nobody_else_and_keeps_its_rate() -> None:
    enqueue_many(slowly, [{"note": str(n)} for n in range(4)])
    job_row()
    [first] = go(FREE, "limits.slowly")
    assert go(FREE, "limits.slowly") == []
    assert len(go(FREE)) == 1
    end(first, "succeeded")
    pass_time(9.0)
    assert go(FREE, "limits.slowly") == []
    pass_time(1.5)
    assert len(go(FREE, "limits.slowly")) == 1
    assert Limit.objects.get().name == "task:limits.slowly"


@pytest.mark.parametrize("lane", ["", "limits.slowly"])
def test_what_has_a_rate_does_not_pile_up_on_the_broker(lane: str) -> None:
    """Workers that are busy, or away, would start all of it at once when they come back."""
    if lane:
        enqueue_many(slowly, [{"note": str(n)} for n in range(9)])
    else:
        waiting(300)
    queue = FREE if lane else LIMITED
    burst = 1 if lane else 50
    assert len(go(queue, lane)) == burst
    for _ in range(3):
        pass_time(60.0)
        assert go(queue, lane) == []
    ledger.recall([queue.name], 9999)
    pass_time(60.0)
    assert len(go(queue, lane)) == burst


def test_a_lane_obeys_its_downstream_as_well() -> None:
    enqueue_many(quickly, [{"note": str(n)} for n in range(30)])
    waiting(90)
    assert len(go(LIMITED, "limits.quickly")) == 1
    assert len(go()) >= 49  # what it left of the burst
    limits.pause("downstream:bank", 60, "")
    execute("DELETE FROM tasks_limit WHERE name LIKE 'task:%%'")
    assert go(LIMITED, "limits.quickly") == []


def test_a_task_of_another_release_is_limited_by_guess_where_its_rate_is_not_known() -> None:
    """A relay that is not replaced yet must not send it unlimited."""
    waiting(9, queue=FREE.name, task="t.of_tomorrow", lane="t.of_tomorrow")
    assert len(go(FREE, "t.of_tomorrow")) == 1
    ledger.recall([FREE.name], 9)
    assert go(FREE, "t.of_tomorrow") == []
    pass_time(1.0)
    assert len(go(FREE, "t.of_tomorrow")) == 1


# --- pause until -------------------------------------------------------------------------


def test_a_pause_stops_every_queue_of_its_downstream_and_no_other() -> None:
    waiting(3)
    waiting(3, queue="mail", tenant="m")
    limits.pause("downstream:bank", 60, "429")
    assert go() == go(TOPOLOGY.queue("refunds")) == []
    assert len(go(MAILS)) == 3
    pass_time(60)
    assert len(go()) == 3


def test_a_pause_is_never_shortened_by_another_one() -> None:
    limits.pause("downstream:bank", 60, "long")
    limits.pause("downstream:bank", 5, "short")
    assert limits.status_of("downstream:bank").paused_s > 55
    assert limit().pause_reason == "long"
    limits.pause("downstream:bank", 90, "longer")
    assert limits.status_of("downstream:bank").paused_s > 85
    assert limit().pause_reason == "longer"


def test_the_first_pause_leaves_the_bucket_full() -> None:
    limits.pause("downstream:bank", 0, "")
    waiting(60)
    assert len(go()) == 50


def test_what_was_sent_before_a_pause_is_taken_back_by_the_relay() -> None:
    waiting(3)
    sent = go()
    limits.pause("downstream:bank", 60, "429")
    breaker.watch()
    assert set(Job.objects.values_list("state", flat=True)) == {State.QUEUED}
    assert ledger.claim(sent[0].id, sent[0].dispatch_no, worker="w", release="", lease_s=9) is None


# --- the breaker opens -------------------------------------------------------------------


def outage(runs: int = 4) -> None:
    """So many runs failed, and a relay has seen it."""
    waiting(runs)
    for job in go():
        end(job, "retry")
    breaker.watch()


def test_it_opens_when_the_share_of_failures_is_reached_and_says_why() -> None:
    waiting(8)
    for job, outcome in zip(go(), ["retry", "succeeded", "failed", "succeeded"], strict=False):
        end(job, outcome)
    breaker.watch()
    assert limits.status_of("downstream:bank").breaker == "open"
    assert limit().open_reason == "2 of 4 runs failed in 30 s; last: BankUnavailable"
    assert limit().openings == 1
    assert 9 < limits.status_of("downstream:bank").open_s <= 10


def test_it_stays_closed_below_the_share_or_the_least_number_of_runs() -> None:
    waiting(8)
    sent = go()
    for job, outcome in zip(sent, ["retry", "retry", "failed"], strict=False):
        end(job, outcome)
    breaker.watch()
    assert limits.status_of("downstream:bank").breaker == "closed"
    for job in sent[3:7]:
        end(job, "succeeded")
    breaker.watch()
    assert limits.status_of("downstream:bank").breaker == "closed"


def test_what_the_body_itself_declines_or_others_do_does_not_open_it() -> None:
    waiting(8)
    for job in go():
        end(job, "failed", "tasks.errors.Fail")
    waiting(8, queue="default", tenant="other")
    for job in go(FREE):
        end(job, "failed")
    breaker.watch()
    assert limits.status_of("downstream:bank").breaker == "closed"


def test_old_failures_do_not_open_it() -> None:
    waiting(8)
    for job in go():
        end(job, "failed")
    execute("UPDATE tasks_attempt SET finished_at = finished_at - interval '31 seconds'")
    breaker.watch()
    assert limits.status_of("downstream:bank").breaker == "closed"


def test_open_nothing_goes_and_what_has_not_started_is_taken_back() -> None:
    waiting(9)
    sent = go()
    for job in sent[:4]:
        end(job, "retry")
    runs = ledger.claim(sent[4].id, sent[4].dispatch_no, worker="w", release="", lease_s=9)
    breaker.watch()
    assert Job.objects.filter(state=State.DISPATCHED).count() == 0
    assert Job.objects.filter(state=State.RUNNING).count() == 1
    assert ledger.claim(sent[5].id, sent[5].dispatch_no, worker="w", release="", lease_s=9) is None
    assert go() == go(TOPOLOGY.queue("refunds")) == []
    assert runs is not None
    assert ledger.succeed(sent[4].id, runs.fence, result=None)  # what runs may end


def test_two_relays_open_it_once() -> None:
    waiting(4)
    for job in go():
        end(job, "retry")
    barrier = threading.Barrier(2)

    def relay(_: int) -> None:
        try:
            barrier.wait(10)
            breaker.watch()
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(relay, range(2)))
    assert limit().openings == 1


def test_a_relay_need_not_try_what_cannot_go_before_its_next_look() -> None:
    assert breaker.watch() == frozenset()
    outage()
    assert breaker.watch() == {"downstream:bank"}
    pass_time(9.5)
    assert breaker.watch() == frozenset()
    limits.pause("downstream:mail", 60, "")
    assert breaker.watch() == {"downstream:mail"}


# --- it probes ---------------------------------------------------------------------------


def test_half_open_exactly_one_job_goes() -> None:
    outage(8)
    pass_time(10)
    [probe] = go()
    assert (limit().probe, limit().probe_dispatch_no) == (probe.id, probe.dispatch_no)
    assert go() == go(TOPOLOGY.queue("refunds")) == []
    breaker.watch()
    assert go() == []
    end(probe, "succeeded")
    assert go() == []  # not judged yet
    breaker.watch()
    assert limits.status_of("downstream:bank").breaker == "closed"
    assert limit().openings == 0
    assert len(go()) == 7


def test_a_probe_that_fails_opens_it_for_twice_as_long() -> None:
    outage()
    pass_time(10)
    [probe] = go()
    end(probe, "retry")
    breaker.watch()
    assert limit().openings == 2
    assert 19 < limits.status_of("downstream:bank").open_s <= 20
    assert limit().open_reason == "a probe failed: BankUnavailable"
    assert go() == []
    pass_time(20)
    assert len(go()) == 1


def test_failures_of_before_it_closed_do_not_open_it_again() -> None:
    outage()
    pass_time(10)
    [probe] = go()
    end(probe, "succeeded")
    breaker.watch()
    breaker.watch()
    assert limits.status_of("downstream:bank").breaker == "closed"


def test_a_long_probe_stays_the_only_one() -> None:
    outage()
    pass_time(10)
    [probe] = go()
    assert ledger.claim(probe.id, probe.dispatch_no, worker="w", release="", lease_s=60)
    pass_time(100)
    breaker.watch()
    assert go() == []


@pytest.mark.parametrize("way", ["cancelled", "declined", "given back", "crashed", "undispatched"])
def test_a_probe_that_says_nothing_lets_another_one_go_at_once(way: str) -> None:
    outage()
    pass_time(10)
    [probe] = go()
    if way == "undispatched":
        ledger.undispatch([probe])
    elif way in ("cancelled", "declined"):
        end(probe, way, "tasks.errors.Fail")
    else:
        claim = ledger.claim(probe.id, probe.dispatch_no, worker="w", release="", lease_s=60)
        assert claim is not None
        if way == "crashed":
            ledger.crash(probe.id, claim.fence, max_crashes=3, reason="killed")
        else:
            ledger.give_back(probe.id, claim.fence)
    breaker.watch()
    assert limits.status_of("downstream:bank").breaker == "half open"
    assert len(go()) == 1
    assert go() == []


def test_a_probe_that_no_worker_takes_is_taken_back_and_another_one_goes() -> None:
    outage()
    pass_time(10)
    [probe] = go()
    breaker.watch()
    assert Job.objects.get(id=probe.id).state == State.DISPATCHED
    pass_time(16)
    breaker.watch()
    assert Job.objects.filter(state=State.DISPATCHED).count() == 0
    assert len(go()) == 1
    assert Job.objects.filter(state=State.DISPATCHED).count() == 1


def test_a_run_from_before_is_no_answer_of_the_probe() -> None:
    """The job that probes may have failed in the outage itself."""
    outage()
    pass_time(10)
    [probe] = go()
    breaker.watch()
    assert limit().probe == probe.id
    assert limits.status_of("downstream:bank").breaker == "half open"


def test_successes_are_only_looked_at_when_enough_runs_have_failed(
    django_assert_num_queries: Any,
) -> None:
    waiting(4)
    for job in go():
        end(job, "succeeded")
    with django_assert_num_queries(2):  # the rows of the limits, one count of failures
        breaker.watch()


def test_successes_beyond_those_that_are_looked_at_are_in_proportion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """4 failures in 30 s; the newest 10 runs, all of the last 10 s, are successes."""
    monkeypatch.setattr(breaker, "RUNS_MAX", 10)
    waiting(14)
    jobs = go()
    for job in jobs[:4]:
        end(job, "retry")
    execute("UPDATE tasks_attempt SET finished_at = finished_at - interval '20 seconds'")
    for job in jobs[4:]:
        end(job, "succeeded")
    execute(
        "UPDATE tasks_attempt SET finished_at = clock_timestamp() - interval '10 seconds'"
        " WHERE outcome = 'succeeded'"
    )
    runs = breaker.runs_of(BANK, BANK.breaker or Breaker())
    assert runs.failed == 4
    assert runs.succeeded == pytest.approx(30, abs=4)


def test_what_the_breaker_counts_is_found_by_an_index() -> None:
    job = job_row(State.SUCCEEDED)
    execute(
        "INSERT INTO tasks_attempt (job_id, fence, number, outcome, worker, release, started_at,"
        " finished_at) SELECT %s, n, 1, 'succeeded', '', '', now(), now() - n * interval '1 s'"
        " FROM generate_series(1, 20000) n", job.id,
    )  # fmt: skip
    execute("ANALYZE tasks_attempt")
    plan = "\n".join(
        row[0]
        for row in execute(
            "EXPLAIN SELECT count(*) FROM tasks_attempt a JOIN tasks_job j ON j.id = a.job_id"
            " WHERE a.outcome IN ('retry', 'failed') AND a.finished_at > statement_timestamp() -"
            " 30 * interval '1 second' AND j.queue = 'limited'"
        )
    )
    assert "tasks_attempt_failed" in plan


def test_jobs_of_a_task_obey_the_rate_of_their_queue() -> None:
    enqueue_many(limited, [{"note": str(n)} for n in range(60)])
    assert len(go()) == 50
