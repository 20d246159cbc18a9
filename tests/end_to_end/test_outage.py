"""A downstream that fails, and what reaches it meanwhile. The stub counts, not the ledger."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise

import pytest

from tasks import limits, pauses
from tasks.enqueue import enqueue, enqueue_many
from tasks.models import Attempt, Job, Limit
from tasks.states import Pausable, State
from tests.broker import Corner, execute
from tests.calling_tasks import as_often_as_it_likes, call, metered, six_a_minute
from tests.processes import relay, wait_until, worker
from tests.short_breaker import BANK, BREAKER
from tests.stub import Stub, stub

TASKS = ("-I", "tests.calling_tasks")
SLOTS = ("-c", "6")  # more than the downstream may get at once
LIMIT = BANK.max_concurrency or 0
# Seconds. A relay looks at the breaker once a second.
NOTICED_S = 1.5
# Seconds for all jobs once it has closed, on a machine that is busy with other tests.
WORK_S = 25
JOBS = 300

pytestmark = [pytest.mark.timeout(110), pytest.mark.django_db(transaction=True)]


@pytest.fixture
def corner() -> Iterator[Corner]:
    corner = Corner()
    yield corner
    corner.clear()


@pytest.fixture
def bank() -> Iterator[Stub]:
    with stub() as known:
        yield known


def site(corner: Corner, bank: Stub) -> dict[str, str]:
    return {
        **corner.env, "DJANGO_SETTINGS_MODULE": "tests.short_breaker", "STUB_URL": bank.url,
    }  # fmt: skip


def done() -> int:
    return Job.objects.filter(state=State.SUCCEEDED).count()


def opened_at() -> float:
    """0.0 while it is closed."""
    rows = execute("SELECT extract(epoch FROM opened_at)::float8 FROM tasks_limit")
    return rows[0][0] or 0.0 if rows else 0.0


def claimed_between(begin: float, end: float) -> int:
    """Attempts whose run a worker took in this time."""
    rows = execute(
        "SELECT count(*) FROM tasks_attempt WHERE started_at > to_timestamp(%s)"
        " AND started_at < to_timestamp(%s)", begin, end,
    )  # fmt: skip
    return int(rows[0][0])


def test_in_an_outage_the_breaker_opens_and_only_single_probes_spend_an_attempt(
    corner: Corner, bank: Stub
) -> None:
    """Every call slow and failing for 15 s; two relays."""
    bank.status, bank.takes_s = 503, 0.3
    enqueue_many(call, [{"number": n} for n in range(JOBS)])
    env = site(corner, bank)
    with worker("limited", *TASKS, *SLOTS, env=env), relay(env=env) as one:
        with relay(name="second", env=env):
            opened = wait_until(opened_at, within_s=20, what="the breaker opens")
            time.sleep(15)
            recovered = time.time()
            bank.status, bank.takes_s = 200, 0.01
            wait_until(lambda: done() == JOBS, within_s=40, what="all are done")
        took_s = time.time() - recovered
        assert "relay_failed" not in one.log
    assert bank.most_at_once == LIMIT
    # Open, nobody starts; a run that was claimed before may still be about to call.
    first_probe = opened + BREAKER.open_s
    assert claimed_between(opened, first_probe) == 0
    assert len(bank.between(opened, first_probe)) <= LIMIT
    # Then single probes, each after a longer pause than the one before.
    probes = [c for c in bank.between(first_probe, recovered) if c.status == 503]
    assert claimed_between(first_probe, recovered) == len(probes)
    assert 3 <= len(probes) <= 7
    for before, after in pairwise(probes):
        assert after.began_at - before.ended_at >= BREAKER.open_s
    assert probes[-1].began_at - probes[-2].ended_at >= BREAKER.longest_open_s
    # Nobody spent an attempt but those who called.
    failed = [c for c in bank.calls if c.status == 503]
    assert Attempt.objects.exclude(outcome="succeeded").count() == len(failed)
    assert sum(Job.objects.values_list("attempts", flat=True)) == len(failed) + JOBS
    # Each job called once with success, and the wait after the recovery is that of one probe.
    assert len({c.path for c in bank.calls if c.status == 200}) == JOBS
    assert sum(c.status == 200 for c in bank.calls) == JOBS
    assert took_s < BREAKER.longest_open_s + NOTICED_S + WORK_S
    assert Limit.objects.get().openings == 0


def test_a_429_pauses_the_whole_downstream_until_then(corner: Corner, bank: Stub) -> None:
    bank.status, bank.retry_after_s = 429, 4
    env = site(corner, bank)
    with relay(env=env), worker("limited", *TASKS, *SLOTS, env=env):
        enqueue_many(call, [{"number": n} for n in range(40)])
        wait_until(lambda: limits.status_of("downstream:bank").paused_s > 0)
        bank.status = 200
        wait_until(lambda: done() == 40, within_s=30, what="all are done")
    said_no = [c for c in bank.calls if c.status == 429]
    assert 1 <= len(said_no) <= LIMIT + 2  # those at once; two more may have been about to start
    until = execute("SELECT extract(epoch FROM paused_until)::float8 FROM tasks_limit")[0][0]
    assert claimed_between(until - bank.retry_after_s + NOTICED_S, until) == 0
    assert max(c.began_at for c in bank.calls) > until


def test_a_rate_holds_over_two_relays_and_is_used(corner: Corner, bank: Stub) -> None:
    """As the stub counts: never more than a burst of 2 and 20 in each second since."""
    env = site(corner, bank)
    with (
        relay(env=env),
        relay(name="second", env=env),
        worker("metered", *TASKS, *SLOTS, env=env),
    ):
        began_at = time.time()
        enqueue_many(metered, [{"number": n} for n in range(JOBS // 2)])
        wait_until(lambda: done() == JOBS // 2, within_s=40, what="all are done")
    calls = bank.between(0, time.time())
    assert len(calls) == JOBS // 2
    for number, made in enumerate(calls, 1):
        assert number <= 2 + 20 * (made.began_at - began_at)
    assert calls[-1].began_at - calls[0].began_at < 2 * len(calls) / 20


def test_a_task_with_a_rate_does_not_delay_another_of_its_queue_and_keeps_its_rate(
    corner: Corner, bank: Stub
) -> None:
    """One process for both: where the worker itself held them back, all would wait behind four."""
    env = site(corner, bank)
    with relay(env=env), worker("default", *TASKS, "-c", "1", env=env):
        began_at = time.time()
        enqueue_many(six_a_minute, [{"number": n} for n in range(4)])
        enqueue(as_often_as_it_likes, {"number": 99})
        wait_until(lambda: len(bank.calls) == 3, within_s=15, what="the second limited one")
    calls = bank.between(0, time.time())
    assert [c.path for c in calls] in (["/0", "/99", "/1"], ["/99", "/0", "/1"])
    began = {c.path: c.began_at for c in calls}
    assert began["/99"] - began_at < 2
    assert began["/0"] - began_at < 2
    assert 9.5 < began["/1"] - began["/0"] < 12


def test_a_queue_paused_in_the_middle_of_its_work_stands_still_and_goes_on(
    corner: Corner, bank: Stub
) -> None:
    bank.takes_s = 0.05
    env = site(corner, bank)
    with relay(env=env), worker("limited", *TASKS, *SLOTS, env=env):
        enqueue_many(call, [{"number": n} for n in range(JOBS)])
        wait_until(lambda: done() > 20, within_s=30)
        pauses.pause(Pausable.QUEUE, "limited", actor="ann", reason="maintenance")
        time.sleep(NOTICED_S)
        called = len(bank.calls)
        time.sleep(2)
        assert len(bank.calls) == called
        assert Job.objects.filter(state=State.DISPATCHED).count() == 0
        pauses.resume(Pausable.QUEUE, "limited", actor="ann")
        wait_until(lambda: done() == JOBS, within_s=40, what="all are done")
    assert len(bank.calls) == JOBS
    assert set(Job.objects.values_list("attempts", flat=True)) == {1}
