"""Alive, ready, and whether somebody moves the work."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from structlog.testing import capture_logs

from devtools.ports import free_port
from tasks import health
from tasks.deadline import BoundedReader
from tasks.health import RelayWatch, relay_status
from tasks.sql import execute
from tests import published_tasks  # noqa: F401  (registers them)
from tests.callers import api_client, set_state

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def no_watching_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RelayWatch, "start", lambda _: None)


@pytest.fixture
def database_is_down() -> Iterator[None]:
    connection.close()
    port, connection.settings_dict["PORT"] = connection.settings_dict["PORT"], str(free_port())
    yield
    connection.settings_dict["PORT"] = port


def job(since_s: float = 0.0) -> str:
    """A due job that has waited for so long."""
    job_id = api_client().enqueued()
    execute("UPDATE tasks_job SET run_at = now() - %s * interval '1 second'", [since_s])
    return job_id


def relay(last_beat_s: float = 0.0) -> None:
    execute(
        "INSERT INTO tasks_relay (id, host, pid, started_at, last_beat)"
        " VALUES (%s, 'h', 1, now(), now() - %s * interval '1 second')",
        [uuid.uuid4(), last_beat_s],
    )


def ask(client: Client) -> tuple[int, dict[str, Any]]:
    answer = client.get("/readyz")
    return answer.status_code, answer.json()


# --- alive, ready ------------------------------------------------------------------------


@pytest.mark.usefixtures("database_is_down")
def test_a_process_is_alive_without_a_database(client: Client) -> None:
    assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_machines_ask_by_an_address_that_no_allowed_host_names(client: Client, path: str) -> None:
    assert client.get(path, headers={"host": "10.1.2.3:8000"}).status_code == 200
    assert client.get("/admin/login/", headers={"host": "10.1.2.3:8000"}).status_code == 400


def test_ready_with_a_database_and_nothing_to_do(client: Client) -> None:
    assert ask(client) == (200, {"status": "ready", "database": "ok", "relay": "none"})


def test_ready_with_a_relay(client: Client) -> None:
    relay()
    job(since_s=3600)
    assert ask(client) == (200, {"status": "ready", "database": "ok", "relay": "ok"})


def test_without_a_relay_it_accepts_and_says_so(client: Client) -> None:
    relay(last_beat_s=16)
    job(since_s=31)
    assert ask(client) == (200, {"status": "degraded", "database": "ok", "relay": "missing"})


@pytest.mark.usefixtures("database_is_down")
def test_not_ready_without_a_database(client: Client) -> None:
    status, body = ask(client)
    assert status == 503
    assert body == {"status": "unavailable", "database": "unavailable", "relay": "unknown"}


def test_not_ready_before_the_tables_exist(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "live_relays", lambda: execute("SELECT FROM no_such_table", []))
    assert ask(client)[0] == 503


def test_not_ready_within_the_limit_when_the_database_is_mute(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "READY_WITHIN_S", 0.3)
    monkeypatch.setattr(health, "live_relays", lambda: execute("SELECT pg_sleep(2)", []))
    before = threading.active_count()
    began = time.monotonic()
    for _ in range(3):
        assert ask(client) == (
            503,
            {"status": "unavailable", "database": "no answer", "relay": "unknown"},
        )
    assert time.monotonic() - began < 1.5
    assert threading.active_count() <= before + 1
    time.sleep(2)


def test_a_reader_works_again_after_an_answer_came_too_late() -> None:
    reader = BoundedReader()
    with pytest.raises(TimeoutError):
        reader.read(lambda: time.sleep(0.3), within_s=0.1)
    assert reader.read(lambda: 7, within_s=2) == 7


def test_a_reader_passes_errors_on() -> None:
    with pytest.raises(ZeroDivisionError):
        BoundedReader().read(lambda: 1 // 0, within_s=2)


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_probes_are_only_read(client: Client, path: str) -> None:
    assert client.post(path).status_code == 405


# --- the relay ---------------------------------------------------------------------------


def test_young_work_is_no_reason_to_miss_a_relay() -> None:
    job(since_s=25)
    assert not relay_status().is_missing


def test_a_time_that_came_with_nobody_to_notice_is_missed_too() -> None:
    job(since_s=31)
    execute("UPDATE tasks_job SET due = false", [])
    assert relay_status().is_missing


def test_a_run_that_nobody_rescues_is_missed_too() -> None:
    set_state(job(), "running")
    execute("UPDATE tasks_job SET lease_expires_at = now() - interval '31 seconds'", [])
    assert relay_status().is_missing


def test_work_on_hold_and_finished_work_need_no_relay() -> None:
    job(since_s=3600)
    execute("UPDATE tasks_job SET hold_reason = 'paused'", [])
    assert not relay_status().is_missing
    set_state(job(since_s=3600), "succeeded")
    assert not relay_status().is_missing


def test_an_outage_is_logged_once_and_its_end_once() -> None:
    watch = RelayWatch()
    job(since_s=31)
    with capture_logs() as logs:
        watch.check()
        watch.check()
        relay()
        watch.check()
        watch.check()
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [
        ("no_relay", "error"),
        ("relay_is_back", "info"),
    ]


def test_a_watch_looks_by_itself_and_survives_an_outage_of_the_database(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(health, "WATCH_EVERY_S", 0.05)
    failures = iter([RuntimeError("gone")])

    def status() -> health.RelayStatus:
        for failure in failures:
            raise failure
        return health.RelayStatus(live=0, work_waits=True)

    monkeypatch.setattr(health, "relay_status", status)
    watch = RelayWatch()
    with capture_logs() as logs:
        watch.start()
        watch.start()
        time.sleep(0.5)
        watch.stop()
    assert [entry["event"] for entry in logs] == ["relay_watch_failed", "no_relay"]
