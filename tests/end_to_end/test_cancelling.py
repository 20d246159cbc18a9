"""Cancelling what runs, in every pool, while the worker drains and while the broker is away."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import pytest

from devtools.proxy import FaultyProxy
from tasks import ledger, sql
from tasks.enqueue import enqueue
from tasks.interrupt import LOOK_EVERY_S
from tasks.models import Attempt, Job
from tasks.states import State
from tests import cancelled_tasks
from tests.broker import Corner, Trace, trace_table
from tests.processes import relay, wait_until, worker

TASKS = ("-I", "tests.cancelled_tasks")
# A heartbeat, and what a busy machine adds to it.
HEARTBEAT_S = 5.0
SLACK_S = 1.5
POOLS = {"prefork": ("-c", "2"), "threads": ("-P", "threads", "-c", "2"), "solo": ("-P", "solo")}

pytestmark = [pytest.mark.timeout(110), pytest.mark.django_db(transaction=True)]


@pytest.fixture
def corner() -> Iterator[Corner]:
    corner = Corner()
    yield corner
    corner.clear()


@pytest.fixture
def trace() -> Iterator[Trace]:
    with trace_table() as trace:
        yield trace


@pytest.fixture(scope="module")
def mute() -> Iterator[int]:
    """The port of a server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def job(job_id: UUID) -> Job:
    return Job.objects.get(id=job_id)


def begins(trace: Trace, note: str) -> None:
    wait_until(lambda: f"{note} begins" in trace.notes, within_s=40, what=f"{note} begins")


def cancelled_within_a_heartbeat(*job_ids: UUID) -> None:
    began = time.monotonic()
    for job_id in job_ids:
        assert ledger.cancel(job_id, actor="ann", reason="stop") == State.RUNNING
    for job_id in job_ids:
        wait_until(lambda id=job_id: job(id).finished_at, within_s=HEARTBEAT_S + SLACK_S)  # type: ignore[misc]
        ended = job(job_id)
        assert (ended.state, ended.cancel_reason) == (State.CANCELLED, "stop"), ended.error_message
        assert list(Attempt.objects.filter(job=ended).values_list("outcome")) == [("cancelled",)]
    assert time.monotonic() - began < HEARTBEAT_S + LOOK_EVERY_S + SLACK_S


@pytest.mark.parametrize("pool", POOLS)
def test_each_kind_of_body_is_told_within_a_heartbeat(
    pool: str, corner: Corner, trace: Trace, mute: int
) -> None:
    """Right after its start, when no renewal has come yet, and later."""
    bodies: dict[str, Callable[[], Any]] = {
        "looks": lambda: enqueue(cancelled_tasks.looks, {"note": "looks"}),
        "awaits": lambda: enqueue(cancelled_tasks.awaits, {"note": "awaits"}),
        "calls": lambda: enqueue(cancelled_tasks.calls, {"note": "calls", "port": mute}),
        "queries": lambda: enqueue(cancelled_tasks.queries, {"note": "queries"}),
    }
    with worker("default", *TASKS, *POOLS[pool], env=corner.env), relay(env=corner.env):
        for note, start in bodies.items():
            job_id = start().job_id
            begins(trace, note)
            cancelled_within_a_heartbeat(job_id)
    assert "awaits cleans up" in trace.notes
    assert not [note for note in trace.notes if note.endswith(" ends")]


def test_a_draining_worker_still_hears_of_a_cancel(corner: Corner, trace: Trace) -> None:
    with worker("default", *TASKS, "-c", "2", env=corner.env) as process, relay(env=corner.env):
        jobs = [
            enqueue(cancelled_tasks.looks, {"note": "looks"}).job_id,
            enqueue(cancelled_tasks.awaits, {"note": "awaits"}).job_id,
        ]
        begins(trace, "looks")
        begins(trace, "awaits")
        process.send(signal.SIGTERM)
        time.sleep(0.5)
        cancelled_within_a_heartbeat(*jobs)
        assert process.wait(within_s=8) == 0


def test_a_body_that_looks_at_nothing_is_cancelled_when_its_worker_gives_it_back(
    corner: Corner, trace: Trace
) -> None:
    site = {**corner.env, "DJANGO_SETTINGS_MODULE": "tests.short_drain"}
    with worker("default", *TASKS, "-c", "1", env=site) as process, relay(env=corner.env):
        job_id = enqueue(cancelled_tasks.deaf, {"note": "x", "seconds": 60}).job_id
        begins(trace, "x")
        ledger.cancel(job_id, actor="ann", reason="stop")
        process.send(signal.SIGTERM)
        process.wait(within_s=15)
        assert (job(job_id).state, job(job_id).attempts) == (State.CANCELLED, 0)


def test_an_async_body_is_given_back_at_the_drain_deadline_and_may_clean_up(
    corner: Corner, trace: Trace
) -> None:
    site = {**corner.env, "DJANGO_SETTINGS_MODULE": "tests.short_drain"}
    with worker("default", *TASKS, "-c", "1", env=site) as process, relay(env=corner.env):
        job_id = enqueue(cancelled_tasks.awaits, {"note": "x"}).job_id
        begins(trace, "x")
        process.send(signal.SIGTERM)
        process.wait(within_s=15)
        given = job(job_id)
        assert (given.state, given.attempts, given.crashes) == (State.QUEUED, 0, 0)
    assert trace.notes == ["x begins", "x cleans up"]


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_run_is_told_while_the_broker_is_away(pool: str, corner: Corner, trace: Trace) -> None:
    with proxied(corner) as (proxy, env):
        options = (*TASKS, *POOLS[pool])
        with worker("default", *options, env=env), relay(env=corner.env):
            job_id = enqueue(cancelled_tasks.looks, {"note": "x"}).job_id
            begins(trace, "x")
            proxy.refuse()
            time.sleep(1)
            cancelled_within_a_heartbeat(job_id)
            proxy.pass_on()


def test_a_hook_that_fails_after_the_commit_does_not_fail_the_job() -> None:
    """It has succeeded, and everything that it wrote is there."""
    done = cancelled_tasks.fails_after_commit.apply(kwargs={"note": "x"})
    assert (done.status, done.result) == ("SUCCESS", "x")
    found = job(UUID(done.id))
    assert (found.state, found.attempts, found.error_type) == (State.SUCCEEDED, 1, "")


def test_start_by_ends_what_lies_on_the_broker(corner: Corner, trace: Trace) -> None:
    """No worker claims it late, even before the relay has seen that it expired."""
    with worker("default", *TASKS, "-c", "1", env=corner.env), relay(env=corner.env) as relaying:
        blocker = enqueue(cancelled_tasks.deaf, {"note": "blocker", "seconds": 4}).job_id
        begins(trace, "blocker")
        late = enqueue(cancelled_tasks.deaf, {"note": "late", "seconds": 0}, start_by=soon())
        wait_until(lambda: job(late.job_id).state == State.DISPATCHED, what="it is dispatched")
        relaying.kill()
        wait_until(lambda: job(blocker).finished_at, within_s=20)
        time.sleep(1)
        assert job(late.job_id).state == State.DISPATCHED
    with relay(env=corner.env):
        wait_until(lambda: job(late.job_id).finished_at, within_s=10)
    assert (job(late.job_id).state, job(late.job_id).failure) == (State.FAILED, "expired")
    assert "late begins" not in trace.notes


def soon() -> Any:
    return sql.now() + timedelta(seconds=3)


@contextmanager
def proxied(corner: Corner) -> Iterator[tuple[FaultyProxy, dict[str, str]]]:
    address = urlsplit(corner.url)
    with FaultyProxy(str(address.hostname), address.port or 6379) as proxy:
        url = corner.url.replace(f":{address.port}/", f":{proxy.port}/")
        yield proxy, {**corner.env, "BROKER_URL": url}
