"""The database connections of a worker."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psycopg
import pytest
from django.db import OperationalError, ProgrammingError, connection, transaction

from tasks.connections import persisting, reconnecting
from tests.broker import Corner, Trace, execute, trace_table
from tests.processes import database_url, wait_until, worker

PLAIN_TASKS = ("-I", "tests.plain_tasks")

pytestmark = [pytest.mark.timeout(60), pytest.mark.django_db(transaction=True)]


@pytest.fixture
def corner() -> Iterator[Corner]:
    corner = Corner()
    yield corner
    corner.clear()


@pytest.fixture
def trace() -> Iterator[Trace]:
    with trace_table() as trace:
        yield trace


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_two_hundred_tasks_share_one_connection_per_slot(
    pool: str, corner: Corner, trace: Trace
) -> None:
    for number in range(200):
        corner.send_task("plain.trace", str(number))
    with worker("default", *PLAIN_TASKS, "-P", pool, "-c", "3", env=corner.env):
        wait_until(lambda: len(trace.notes) == 200, within_s=30, what="all ran")
    assert len(set(trace.backends)) <= 3


def test_a_task_after_a_killed_connection_succeeds_on_a_new_one(
    corner: Corner, trace: Trace
) -> None:
    with worker("default", *PLAIN_TASKS, "-c", "1", env=corner.env) as process:
        corner.send_task("plain.trace", "before")
        wait_until(lambda: trace.notes == ["before"])
        terminate(trace.backends[0])
        corner.send_task("plain.trace", "after")
        wait_until(lambda: trace.notes == ["before", "after"])
    assert len(set(trace.backends)) == 2
    assert "raised unexpected" not in process.log


def test_what_a_task_left_uncommitted_is_rolled_back_before_the_next(
    corner: Corner, trace: Trace
) -> None:
    with worker("default", *PLAIN_TASKS, "-c", "1", env=corner.env):
        corner.send_task("plain.leave_a_transaction_open")
        corner.send_task("plain.trace", "next")
        wait_until(lambda: trace.notes == ["next"])


def test_a_dead_connection_is_replaced_and_the_statement_runs_once() -> None:
    calls = 0

    def backend() -> int:
        nonlocal calls
        calls += 1
        return int(execute("SELECT pg_backend_pid()")[0][0])

    dead = reconnecting(backend)
    terminate(dead)
    assert reconnecting(backend) != dead
    assert calls == 3


def test_inside_a_transaction_nothing_is_tried_again() -> None:
    def in_a_transaction() -> None:
        with transaction.atomic():
            terminate(execute("SELECT pg_backend_pid()")[0][0])
            reconnecting(execute, "SELECT 1")

    with pytest.raises(OperationalError):
        in_a_transaction()
    connection.close()


def test_a_refused_statement_is_tried_once_more_on_a_session_that_no_body_has_touched() -> None:
    execute("SET search_path = nowhere")
    assert reconnecting(execute, "SELECT count(*) FROM tasks_job") == [(0,)]
    before = time.monotonic()
    with pytest.raises(ProgrammingError):
        persisting(execute, "SELECT nonsense", deadline_s=5.0)
    assert time.monotonic() - before < 2


def test_persisting_waits_for_a_database_that_comes_back() -> None:
    assert persisting(Away(failures=3), deadline_s=5.0) == "back"


def test_persisting_gives_up_at_its_deadline() -> None:
    with pytest.raises(OperationalError, match="away"):
        persisting(Away(failures=1000), deadline_s=0.5)


class Away:
    """A statement that meets no database for the first few times."""

    def __init__(self, *, failures: int) -> None:
        self.failures = failures

    def __call__(self) -> str:
        if self.failures == 0:
            return "back"
        self.failures -= 1
        connection.close()
        raise OperationalError("away")


def terminate(backend: int) -> None:
    with psycopg.connect(database_url(), autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [backend])
