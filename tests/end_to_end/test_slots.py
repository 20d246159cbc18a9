"""A queue with slots: many waiting coroutines in one process."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

import pytest

from tasks import ledger
from tasks.enqueue import enqueue, enqueue_many
from tasks.models import Job
from tasks.states import State
from tests import waiting_tasks
from tests.broker import Corner, execute
from tests.processes import Process, relay, wait_until, worker

ENV = {"DJANGO_SETTINGS_MODULE": "tests.slot_settings"}
# The shared connections, the heartbeat's, the desk's of parked messages, and one for coroutines.
FEW_CONNECTIONS = 8

pytestmark = [pytest.mark.timeout(110), pytest.mark.django_db(transaction=True)]


class Downstream:
    """Counts the calls it holds. ``/dead`` is never answered, others when the gate opens."""

    def __init__(self) -> None:
        self.calls = 0
        self.most = 0
        self.port = 0
        self.loop = asyncio.new_event_loop()
        self.gate = asyncio.Event()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readline()).decode().strip()
        self.calls += 1
        self.most = max(self.most, self.calls)
        try:
            if path == "/dead":
                await reader.read()
            elif path == "/slow":
                await self.gate.wait()
            writer.write(b"answered\n")
            await writer.drain()
        finally:
            self.calls -= 1
            writer.close()

    def open(self) -> None:
        self.loop.call_soon_threadsafe(self.gate.set)

    async def serve(self) -> None:
        server = await asyncio.start_server(self.answer, "127.0.0.1", 0, backlog=200)
        self.port = server.sockets[0].getsockname()[1]


@contextmanager
def downstream() -> Iterator[Downstream]:
    stub = Downstream()
    stub.loop.run_until_complete(stub.serve())
    thread = threading.Thread(target=stub.loop.run_forever, daemon=True)
    thread.start()
    yield stub
    stub.loop.call_soon_threadsafe(stub.loop.stop)
    thread.join(5)


@pytest.fixture
def served() -> Iterator[Process]:
    """By one worker of slots and a relay."""
    corner = Corner()
    env = {**corner.env, **ENV}
    try:
        with relay(env=env), worker("webhooks", "-I", "tests.waiting_tasks", env=env) as process:
            yield process
            sys.stdout.write(process.log)  # pytest shows it when the test failed
    finally:
        corner.clear()


def job(job_id: UUID) -> Job:
    return Job.objects.get(id=job_id)


def ends(job_id: UUID, *, within_s: float = 40.0) -> Job:
    wait_until(lambda: job(job_id).finished_at is not None, within_s=within_s, what="it ends")
    return job(job_id)


def runs(job_id: UUID) -> None:
    wait_until(lambda: job(job_id).state == State.RUNNING, within_s=40, what="it runs")


def test_one_process_holds_a_hundred_calls_over_few_connections(served: Process) -> None:
    with downstream() as stub:
        enqueue_many(waiting_tasks.call, [{"port": stub.port, "path": "/slow"}] * 120)
        wait_until(lambda: stub.calls == 100, within_s=60, what="100 calls at once")
        ours = "datname = current_database() AND pid <> pg_backend_pid()"
        [(backends,)] = execute(f"SELECT count(*) FROM pg_stat_activity WHERE {ours}")
        stub.open()
        wait_until(
            lambda: Job.objects.filter(state=State.SUCCEEDED).count() == 120,
            within_s=60, what="all are answered",
        )  # fmt: skip
        assert stub.most == 100
        assert backends <= FEW_CONNECTIONS + 4, "and those of the relay"


def test_a_dead_call_delays_nobody_else(served: Process) -> None:
    with downstream() as stub:
        dead = enqueue(waiting_tasks.call, {"port": stub.port, "path": "/dead"}).job_id
        wait_until(lambda: stub.calls == 1, within_s=30, what="the dead call")
        begun = time.monotonic()
        enqueue_many(waiting_tasks.call, [{"port": stub.port, "path": "/quick"}] * 50)
        wait_until(
            lambda: Job.objects.filter(state=State.SUCCEEDED).count() == 50,
            within_s=30, what="the others are answered",
        )  # fmt: skip
        assert job(dead).state == State.RUNNING
        assert time.monotonic() - begun < 15
        ledger.cancel(dead, actor="test")
        assert ends(dead).state == State.CANCELLED
        wait_until(lambda: stub.calls == 0, what="the connection is closed")


def test_each_coroutine_sees_its_own_request_task_run_and_log_context(served: Process) -> None:
    enqueue_many(waiting_tasks.who_am_i, [{"number": number} for number in range(60)])
    wait_until(
        lambda: Job.objects.filter(state=State.SUCCEEDED).count() == 60,
        within_s=60, what="all succeed",
    )  # fmt: skip
    for found in Job.objects.all():
        assert found.result == [*[str(found.id)] * 4, True] * 3


def test_the_signals_of_celery_fire_once_for_each_coroutine_among_many(served: Process) -> None:
    answers = enqueue_many(waiting_tasks.signalled, [{"fails": n % 3 == 0} for n in range(60)])
    wait_until(lambda: served.log.count("postrun.") == 60, within_s=60, what="all are told")
    for number, answer in enumerate(answers):
        outcome = "success" if number % 3 else "failure"
        assert f"signals {answer.job_id} prerun {outcome} postrun." in served.log


def test_limits_retries_and_exits_end_the_job_they_belong_to(served: Process) -> None:
    ids = {
        task.name: enqueue(task, {}).job_id
        for task in (
            waiting_tasks.limited,
            waiting_tasks.never_retried,
            waiting_tasks.softly_limited,
            waiting_tasks.stubborn,
            waiting_tasks.exits,
            waiting_tasks.flaky,
        )
    }
    found = {name: ends(job_id) for name, job_id in ids.items()}
    assert {name: one.state for name, one in found.items()} == {
        **dict.fromkeys(ids, State.FAILED),
        "w.flaky": State.SUCCEEDED,
    }
    for name in ("w.limited", "w.retried", "w.stubborn"):
        assert found[name].failure == "time_limit", name
        assert "TimeLimitExceeded" in found[name].error_type
    assert "SoftTimeLimitExceeded" in found["w.soft"].error_type
    assert found["w.soft"].failure == "error"
    assert found["w.flaky"].result == 2
    # The loop lives.
    assert ends(enqueue(waiting_tasks.sleep, {"seconds": 0.0}).job_id).state == State.SUCCEEDED


def test_a_stopping_worker_gives_back_what_still_waits(served: Process) -> None:
    ids = [enqueue(waiting_tasks.sleep, {"seconds": 25.0}).job_id for _ in range(5)]
    quick = enqueue(waiting_tasks.sleep, {"seconds": 2.0}).job_id
    for job_id in (*ids, quick):
        runs(job_id)
    begun = time.monotonic()
    served.send(signal.SIGTERM)
    assert served.wait(within_s=20) == 0
    assert time.monotonic() - begun < 14
    assert job(quick).state == State.SUCCEEDED
    for job_id in ids:
        given_back = job(job_id)
        assert given_back.state in (State.QUEUED, State.DISPATCHED)
        assert (given_back.attempts, given_back.crashes) == (0, 0)


def test_a_stubborn_coroutine_cannot_hold_up_the_stop(served: Process) -> None:
    job_id = enqueue(waiting_tasks.stubborn, {}).job_id
    ends(job_id)
    served.send(signal.SIGTERM)
    assert served.wait(within_s=20) == 0
