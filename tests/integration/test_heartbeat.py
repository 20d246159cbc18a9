"""The row by which others know that a worker lives and what it takes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta

import psycopg
import pytest

from devtools.proxy import FaultyProxy
from tasks import heartbeat
from tasks.heartbeat import BEAT_S, HANGS_AFTER_S, Beater, Vitals
from tasks.models import Worker
from tests.broker import Corner, execute, trace_table
from tests.processes import database_url, wait_until, worker

PLAIN_TASKS = ("-I", "tests.plain_tasks")
BOTH_TASKS = ("-I", "tests.plain_tasks,tests.ledger_tasks")
VITALS = Vitals(
    name="w@test",
    host="here",
    pid=1,
    release="r1",
    queues=("default",),
    known_tasks=("a",),
    capacity=2,
    busy=0,
    draining=False,
)

pytestmark = [pytest.mark.timeout(60), pytest.mark.django_db(transaction=True)]


@pytest.fixture
def corner() -> Iterator[Corner]:
    corner = Corner()
    yield corner
    corner.clear()


def test_a_worker_says_what_it_takes_and_that_it_drains_and_has_stopped(corner: Corner) -> None:
    env = {**corner.env, "RELEASE": "2026.1"}
    with (
        trace_table() as trace,
        worker("payments,bulk", *BOTH_TASKS, "-c", "3", name="w", env=env) as process,
    ):
        row = wait_until(Worker.objects.first, what="the row")
        assert (row.name, row.pid, row.release) == ("w@test", process.pid, "2026.1")
        assert (sorted(row.queues), row.capacity) == (["bulk", "payments"], 3)
        assert "t.trace" in row.known_tasks
        assert "plain.trace" not in row.known_tasks  # it could not run a job of that name

        corner.send_task("plain.trace_and_sleep", "long", 8, queue="bulk")
        wait_until(lambda: trace.notes == ["long"], what="the task runs")
        wait_until(lambda: Worker.objects.get().busy == 1, what="it is counted")
        process.send(signal.SIGTERM)
        wait_until(lambda: Worker.objects.get().draining, within_s=2, what="draining at once")
        assert Worker.objects.get().stopped_at is None
        process.wait()
    assert Worker.objects.get().stopped_at is not None


def test_a_new_worker_takes_over_the_row_of_a_crashed_one(corner: Corner) -> None:
    heartbeat.beat(replace(VITALS, name="w@test", pid=1))
    age("w@test", timedelta(minutes=5))
    long_ago = Worker.objects.get().started_at
    with worker("default", "-c", "1", name="w", env=corner.env) as process:
        wait_until(lambda: Worker.objects.get().pid == process.pid, what="taken over")
        assert Worker.objects.get().started_at > long_ago


def test_the_first_beat_wakes_a_sleeping_relay(corner: Corner) -> None:
    with psycopg.connect(database_url(), autocommit=True) as listener:
        listener.execute("LISTEN tasks_due")
        with worker("default", "-c", "1", env=corner.env):
            assert list(listener.notifies(timeout=10, stop_after=1))


def test_a_worker_outlives_its_database_and_beats_again(corner: Corner) -> None:
    host, port = execute("SELECT host(inet_server_addr()), inet_server_port()")[0]
    with FaultyProxy(host, port) as proxy:
        env = {**corner.env, "DATABASE_URL": database_url(port=proxy.port)}
        with worker("default", *PLAIN_TASKS, "-c", "1", env=env) as process:
            wait_until(Worker.objects.exists)
            proxy.refuse()
            process.wait_for("heartbeat_lost_database", within_s=2 * BEAT_S)
            lost = Worker.objects.get().last_beat
            proxy.pass_on()
            process.wait_for("heartbeat_found_database", within_s=3 * BEAT_S)
            assert Worker.objects.get().last_beat > lost
            assert process.log.count("heartbeat_lost_database") == 1
            assert process.is_running


def test_a_loop_that_hangs_stops_the_beat_unless_the_worker_drains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.02)
    beater = Beater("w@test", ["a"])
    beater.start()
    try:
        wait_until(Worker.objects.exists, what="it beats")
        beater.turning.at -= HANGS_AFTER_S + 1
        silence = wait_for_silence()
        beater.drain()
        wait_until(lambda: Worker.objects.get().last_beat > silence, what="it beats again")
    finally:
        beater.end()


def test_no_error_ends_the_thread_that_renews_and_beats(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> None:
        raise ValueError("a forged message")

    beater = Beater("w@test", ["a"])
    monkeypatch.setattr(beater._renewer, "turn", fails)
    monkeypatch.setattr(beater._renewer, "every_s", 0.02)
    beater.start()
    try:
        wait_until(Worker.objects.exists, what="it beats")
        monkeypatch.undo()
        wait_until(lambda: beater._renewer.renews_at, what="it renews")
    finally:
        beater.end()
    assert caplog.text.count("heartbeat_failed") == 1


def test_a_stopping_worker_does_not_stop_its_successor_of_the_same_name() -> None:
    heartbeat.beat(replace(VITALS, pid=1))
    heartbeat.beat(replace(VITALS, pid=2))
    assert heartbeat.stop(replace(VITALS, pid=1)) is False
    assert heartbeat.stop(replace(VITALS, pid=2)) is True


def test_a_beat_revives_a_row_that_was_pruned_or_stopped() -> None:
    heartbeat.beat(VITALS)
    heartbeat.stop(VITALS)
    heartbeat.beat(VITALS)
    assert Worker.objects.get().stopped_at is None
    Worker.objects.all().delete()
    heartbeat.beat(VITALS)
    assert Worker.objects.get().capacity == 2


def test_workers_that_are_gone_for_a_day_are_forgotten() -> None:
    heartbeat.beat(replace(VITALS, name="yesterday"))
    heartbeat.beat(replace(VITALS, name="an hour ago"))
    age("yesterday", timedelta(hours=25))
    age("an hour ago", timedelta(hours=1))
    assert heartbeat.forget_the_dead() == 1
    assert Worker.objects.get().name == "an hour ago"


def age(name: str, by: timedelta) -> None:
    execute(
        "UPDATE tasks_worker SET last_beat = last_beat - %s, started_at = started_at - %s"
        " WHERE name = %s",
        by, by, name,
    )  # fmt: skip


def wait_for_silence() -> datetime:
    """The last beat, once it has stayed the last for ten beats."""
    seen: list[datetime] = []

    def stays() -> bool:
        seen.append(Worker.objects.get().last_beat)
        return len(seen) > 10 and len(set(seen[-10:])) == 1

    wait_until(stays, every_s=0.02, what="it falls silent")
    return seen[-1]


def test_a_worker_that_leaves_says_nothing_of_relays_that_have_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[str] = []
    beater = Beater("w@test", [])
    monkeypatch.setattr(beater._relays, "check", lambda: looks.append(""))
    beater._beat()
    beater.drain()
    beater._beat()
    assert len(looks) == 1
