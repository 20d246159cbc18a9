"""What ``/metrics`` says of the ledger, and what it costs."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

import pytest
from django.db import connection, transaction
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families
from pytest_django.fixtures import Settings

from devtools.ports import free_port
from tasks import fleet, queues
from tasks.ledger import HELD_BY_REASON, INCOMPATIBLE, UNKNOWN, park
from tasks.queues import queue_loads
from tasks.sql import execute, fetch
from tasks.states import Hold
from tests import published_tasks  # noqa: F401  (registers them)
from tests.callers import api_client, set_state

pytestmark = pytest.mark.django_db(transaction=True)

Figures = dict[tuple[str, ...], float]


@pytest.fixture
def database_is_down() -> Iterator[None]:
    connection.close()
    port, connection.settings_dict["PORT"] = connection.settings_dict["PORT"], str(free_port())
    yield
    connection.settings_dict["PORT"] = port


def scrape(client: Client) -> Figures:
    """Figures by name and label values in the order of the label names."""
    answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer["Content-Type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(answer.content.decode())
        for sample in family.samples
    }


def worker(queue: str, *, capacity: int, last_beat_s: float = 0.0, draining: bool = False) -> None:
    execute(
        "INSERT INTO tasks_worker (name, host, pid, queues, known_tasks, capacity, draining,"
        " started_at, last_beat)"
        " VALUES (%s, 'h', 1, %s, '[]', %s, %s, now(), now() - %s * interval '1 second')",
        [str(uuid.uuid4()), json.dumps([queue]), capacity, draining, last_beat_s],
    )


def hold(job_id: str, reason: str) -> None:
    execute("UPDATE tasks_job SET hold_reason = %s WHERE id = %s", [reason, job_id])


def test_releases_are_told_apart_while_one_replaces_the_other(
    client: Client, settings: Settings
) -> None:
    settings.TASKS_RELEASE = "2026.49"
    for release, last_beat_s in (("2026.48", 0), ("2026.49", 0), ("2026.49", 1), ("2026.40", 60)):
        worker("default", capacity=1, last_beat_s=last_beat_s)
        execute("UPDATE tasks_worker SET release = %s WHERE release = ''", [release])
    fleet.relay_beats(uuid.uuid4(), "h", 1, "2026.49")
    figures = scrape(client)
    assert figures["tasks_release_info", "2026.49"] == 1
    assert figures["tasks_release_workers", "2026.48"] == 1
    assert figures["tasks_release_workers", "2026.49"] == 2
    assert figures["tasks_release_relays", "2026.48"] == 0
    assert figures["tasks_release_relays", "2026.49"] == 1
    assert ("tasks_release_workers", "2026.40") not in figures


def test_only_what_no_worker_can_run_is_held(client: Client) -> None:
    """A healthy ordered queue must not fire the alert JobsHeld."""
    caller = api_client()
    for reason in ("order", "order", "paused", "task unknown", "incompatible: $.x: missing"):
        hold(caller.enqueued(), reason)
    figures = scrape(client)
    assert figures["tasks_jobs", "default", "held"] == 2
    assert figures["tasks_jobs", "default", "ordered"] == 2
    assert figures["tasks_jobs", "default", "paused"] == 1


@pytest.mark.parametrize(
    ("condition", "index"),
    [
        (UNKNOWN, "tasks_job_unknown"),
        (INCOMPATIBLE, "tasks_job_incompatible"),
        (f"{HELD_BY_REASON} = '{Hold.ORDER}'", "tasks_job_in_line"),
        (f"{HELD_BY_REASON} = '{Hold.PAUSED}'", "tasks_job_paused"),
    ],
)
def test_counting_what_is_held_reads_the_index_of_its_reason(condition: str, index: str) -> None:
    """Beside many that are held for another one."""
    with transaction.atomic():
        for reason in (Hold.TASK_UNKNOWN, f"{Hold.INCOMPATIBLE}: x", Hold.ORDER, Hold.PAUSED):
            execute(
                "INSERT INTO tasks_job (id, task, queue, idempotency_key, fingerprint, payload,"
                " hold_reason, ordering_key) SELECT gen_random_uuid(), 't', 'q',"
                " gen_random_uuid()::text, '', '{}', %s, 'k' FROM generate_series(1, %s)",
                [reason, 20 if reason.split(":")[0] in condition else 2_000],
            )
        execute("ANALYZE tasks_job", [])
        execute("SET LOCAL enable_seqscan = off", [])
        plan = fetch(f"EXPLAIN SELECT queue FROM tasks_job WHERE {condition} LIMIT 10", [])
    assert index in " ".join(line for (line,) in plan)


def test_jobs_are_counted_by_queue_and_state(client: Client) -> None:
    caller = api_client()
    caller.enqueued()
    caller.enqueued()
    caller.enqueued(run_at="2090-01-01T00:00:00Z")
    hold(caller.enqueued(), "task unknown")
    set_state(caller.enqueued(), "dispatched")
    set_state(caller.enqueued(), "running")
    set_state(caller.enqueued(), "succeeded")
    set_state(caller.enqueued(), "failed")
    figures = scrape(client)
    assert figures["tasks_jobs", "default", "queued"] == 2
    assert figures["tasks_jobs", "default", "scheduled"] == 1
    assert figures["tasks_jobs", "default", "held"] == 1
    assert figures["tasks_jobs", "default", "dispatched"] == 1
    assert figures["tasks_jobs", "default", "running"] == 1
    assert figures["tasks_dead_letters", "default"] == 1
    assert figures["tasks_jobs", "payments", "queued"] == 0
    assert figures["tasks_ledger_up",] == 1


def test_the_age_is_that_of_the_oldest_due_job(client: Client) -> None:
    caller = api_client()
    caller.enqueued(priority=9)
    execute("UPDATE tasks_job SET run_at = now() - interval '100 seconds'", [])
    caller.enqueued()
    assert 100 <= scrape(client)["tasks_oldest_due_age_seconds", "default"] < 130
    execute("UPDATE tasks_job SET hold_reason = 'paused'", [])
    assert scrape(client)["tasks_oldest_due_age_seconds", "default"] == 0


def test_only_workers_that_beat_and_take_jobs_are_capacity(client: Client) -> None:
    worker("default", capacity=4)
    worker("default", capacity=2)
    worker("default", capacity=100, last_beat_s=16)
    worker("default", capacity=100, draining=True)
    execute("UPDATE tasks_worker SET reconnects = capacity", [])
    figures = scrape(client)
    assert figures["tasks_broker_reconnects", "default"] == 6
    assert figures["tasks_workers", "default"] == 2
    assert figures["tasks_capacity", "default"] == 6
    assert figures["tasks_workers", "payments"] == 0


def test_relays_and_parked_messages_are_counted(client: Client) -> None:
    execute(
        "INSERT INTO tasks_relay (id, host, pid, started_at, last_beat)"
        " VALUES (%s, 'h', 1, now(), now())",
        [uuid.uuid4()],
    )
    park(queue="default", reason="no JSON", task="", headers="", body=b"x")
    figures = scrape(client)
    assert figures["tasks_relays",] == 1
    assert figures["tasks_parked_messages",] == 1


def test_accepted_and_repeated_jobs_are_counted(client: Client) -> None:
    labels = ("default", "published.capture")
    before = scrape(client)
    caller = api_client()
    caller.enqueue("published.capture", {"order_id": 1}, key="k")
    caller.enqueue("published.capture", {"order_id": 1}, key="k")
    after = scrape(client)
    for name in ("tasks_accepted_total", "tasks_repeated_total"):
        assert after[name, *labels] - before.get((name, *labels), 0) == 1


@pytest.mark.usefixtures("database_is_down")
def test_without_a_database_the_counters_are_still_read(client: Client) -> None:
    figures = scrape(client)
    assert figures["tasks_ledger_up",] == 0
    assert not any(name == "tasks_jobs" for name, *_ in figures)


def test_queues_that_nobody_declared_are_shown_up_to_a_bound(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    api_client().enqueued()
    execute("UPDATE tasks_job SET queue = 'zebra'", [])
    assert scrape(client)["tasks_jobs", "zebra", "queued"] == 1
    monkeypatch.setattr(queues, "QUEUES_MAX", 3)
    assert len(queue_loads()) == 3


def test_counting_stops_at_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    caller = api_client()
    for _ in range(5):
        caller.enqueued()
    monkeypatch.setattr(queues, "COUNT_MAX", 3)
    assert next(load.due for load in queue_loads() if load.name == "default") == 3


def test_a_scrape_never_reads_the_history() -> None:
    """With many finished rows and no statistics, each statement still uses a partial index."""
    api_client().enqueued()
    execute(
        "INSERT INTO tasks_job (id, task, queue, tenant, idempotency_key, fingerprint, payload,"
        " state, finished_at)"
        " SELECT gen_random_uuid(), 't', 'default', '', 'h' || n, '', '{}', 'succeeded', now()"
        " FROM generate_series(1, 50000) n",
        [],
    )
    for analysed in (False, True):
        if analysed:
            execute("ANALYZE tasks_job", [])
        before = rows_read()
        queue_loads()
        assert rows_read() - before < 1000


def rows_read() -> int:
    """Live rows that sequential scans of the jobs have returned so far."""
    execute("SELECT pg_stat_force_next_flush()", [])
    execute("SELECT pg_stat_clear_snapshot()", [])
    return int(
        fetch("SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'tasks_job'", [])[0][0]
    )
