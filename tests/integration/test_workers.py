"""Who works, and whether a worker is safe to stop: for people and for a deploy's script."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from tasks.enqueue import enqueue
from tasks.models import Job, Worker
from tasks.states import State
from tests import surviving_tasks
from tests.broker import Corner, trace_table
from tests.callers import Caller, api_client, person
from tests.job_rows import job_row
from tests.processes import relay, wait_until, worker

pytestmark = [pytest.mark.timeout(60), pytest.mark.django_db]


@pytest.fixture
def corner() -> Iterator[Corner]:
    corner = Corner()
    yield corner
    corner.clear()


@pytest.fixture
def operator() -> Caller:
    return person("operate_job")


def worker_row(name: str, *, beat_s: float = 0.0, **fields: Any) -> Worker:
    known = {
        "host": "node-1", "pid": 42, "release": "r1", "queues": ["default"], "known_tasks": [],
        "capacity": 4, "last_beat": datetime.now(UTC) - timedelta(seconds=beat_s),
    }  # fmt: skip
    return Worker.objects.create(name=name, **known | fields)


def workers(*options: str) -> tuple[int, str, str]:
    """Exit code, output, and the complaint."""
    out = StringIO()
    try:
        call_command("workers", *options, stdout=out)
    except CommandError as exc:
        return exc.returncode, out.getvalue(), str(exc)
    return 0, out.getvalue(), ""


def running_row(name: str, **fields: Any) -> Job:
    return job_row(State.RUNNING, worker=name, **fields)


# --- the table ---------------------------------------------------------------------------


def test_the_table_has_a_line_per_worker_those_at_work_first() -> None:
    worker_row("gone@a", stopped_at=datetime.now(UTC), beat_s=3)
    worker_row("lost@a", beat_s=20)
    worker_row("w2@a", queues=["bulk", "payments"], busy=3, draining=True)
    worker_row("w1@a")
    code, text, _ = workers()
    assert code == 0
    assert [line.split() for line in text.splitlines()] == [
        ["NAME", "STATE", "QUEUES", "CAPACITY", "BUSY", "RELEASE", "PID", "HOST", "LAST", "BEAT"],
        ["w1@a", "live", "default", "4", "0", "r1", "42", "node-1", "0", "s", "ago"],
        ["w2@a", "draining", "bulk,payments", "4", "3", "r1", "42", "node-1", "0", "s", "ago"],
        ["gone@a", "stopped", "default", "4", "0", "r1", "42", "node-1", "3", "s", "ago"],
        ["lost@a", "lost", "default", "4", "0", "r1", "42", "node-1", "20", "s", "ago"],
    ]


def test_programs_read_the_table_as_json() -> None:
    worker_row("w1@a")
    (found,) = json.loads(workers("--json")[1])
    assert found.pop("last_beat_age_s") < 5
    assert found == {
        "name": "w1@a", "queues": ["default"], "capacity": 4, "busy": 0, "release": "r1",
        "pid": 42, "host": "node-1", "state": "live",
    }  # fmt: skip


def test_without_workers_it_says_so() -> None:
    assert workers() == (0, "No worker has beaten for a day.\n", "")


# --- safe to stop ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "runs", "safe"),
    [
        ({}, False, True),
        ({"busy": 1}, False, False),
        ({"busy": 1, "draining": True}, False, False),
        ({"busy": 1, "beat_s": 60}, False, True),
        ({"stopped_at": datetime(2026, 1, 1, tzinfo=UTC)}, False, True),
        ({"draining": True}, True, False),
        ({"stopped_at": datetime(2026, 1, 1, tzinfo=UTC)}, True, False),
    ],
)
def test_a_worker_is_safe_to_stop_when_nothing_runs_there_and_nothing_is_about_to(
    fields: dict[str, Any], runs: bool, safe: bool
) -> None:
    worker_row("w1@a", **fields)
    running_row("w1@b")
    if runs:
        running_row("w1@a")
    assert workers("--safe-to-stop", "w1@a")[0] == (0 if safe else 1)


def test_what_runs_there_is_listed_with_its_task_and_since_when() -> None:
    worker_row("w1@a", busy=1)
    job = running_row("w1@a", task="orders.capture")
    code, text, complaint = workers("--safe-to-stop", "w1@a")
    assert code == 1
    assert complaint == "w1@a is live: 1 job would be stopped."
    heading, line = text.splitlines()
    assert heading.split() == ["JOB", "TASK", "SINCE"]
    assert line.split()[:2] == [str(job.id), "orders.capture"]
    answer = json.loads(workers("--safe-to-stop", "w1@a", "--json")[1])
    assert answer["safe_to_stop"] is False
    assert [running["id"] for running in answer["running"]] == [str(job.id)]


def test_a_name_that_is_unknown_is_exit_code_2_with_what_was_meant() -> None:
    worker_row("worker-1@node")
    code, _, complaint = workers("--safe-to-stop", "worker1@node", "--wait", "5")
    assert code == 2
    assert complaint == "There is no worker 'worker1@node'. Did you mean worker-1@node?"


def test_the_wait_ends_at_its_deadline() -> None:
    worker_row("w1@a")
    running_row("w1@a")
    began = time.monotonic()
    assert workers("--safe-to-stop", "w1@a", "--wait", "1")[0] == 1
    assert 1 <= time.monotonic() - began < 3


@pytest.mark.parametrize("wish", ["-1", "nan", "inf", "soon"])
def test_a_wait_is_a_number_of_seconds(wish: str) -> None:
    with pytest.raises(CommandError, match="--wait"):
        call_command("workers", "--safe-to-stop", "w1@a", f"--wait={wish}")


@pytest.mark.django_db(transaction=True)
def test_a_deploy_waits_until_the_job_of_a_draining_worker_has_ended(corner: Corner) -> None:
    tasks = ("-I", "tests.surviving_tasks", "-c", "1")
    with (
        trace_table() as trace,
        worker("default", *tasks, env=corner.env) as process,
        relay(env=corner.env),
    ):
        enqueue(surviving_tasks.slow, {"note": "x", "seconds": 4})
        wait_until(lambda: trace.notes == ["x begins"], what="it runs")
        process.send(signal.SIGTERM)
        wait_until(lambda: Worker.objects.get().draining, what="it drains")
        assert workers("--safe-to-stop", "worker@test")[0] == 1
        shown = person("operate_job").get("/workers/worker@test").json()
        assert (shown["state"], shown["safe_to_stop"], len(shown["running"])) == (
            "draining", False, 1,
        )  # fmt: skip
        assert workers("--safe-to-stop", "worker@test", "--wait", "15")[0] == 0
        assert Job.objects.get().state == State.SUCCEEDED
    assert workers("--safe-to-stop", "worker@test")[0] == 0


# --- over HTTP ---------------------------------------------------------------------------


def test_operators_list_the_workers(operator: Caller) -> None:
    worker_row("w1@a", queues=["bulk"])
    (found,) = operator.get("/workers").json()
    assert found.pop("last_beat_age_s") < 5
    assert found == {
        "name": "w1@a", "queues": ["bulk"], "capacity": 4, "busy": 0, "release": "r1",
        "pid": 42, "host": "node-1", "state": "live",
    }  # fmt: skip


@pytest.mark.parametrize("path", ["/workers", "/workers/w1@a"])
def test_workers_are_for_operators(path: str) -> None:
    answer = api_client(scopes="enqueue,read").get(path)
    assert (answer.status_code, answer.json()["type"]) == (403, "/problems/forbidden")


@pytest.mark.parametrize("name", ["nobody", "%00", "w1%40b"])
def test_an_unknown_worker_is_404(operator: Caller, name: str) -> None:
    worker_row("w1@a")
    answer = operator.get(f"/workers/{name}?safe_to_stop=1", prefer="wait=5")
    assert (answer.status_code, answer.json()["type"]) == (404, "/problems/not-found")
    assert answer["Content-Type"] == "application/problem+json"


def test_an_api_client_sees_the_jobs_of_its_tenant_and_how_many_others_run() -> None:
    worker_row("w1@a", busy=2)
    mine = running_row("w1@a", tenant="acme")
    other = running_row("w1@a", tenant="globex")
    answer = api_client("acme").get("/workers/w1@a?safe_to_stop=1")
    shown = answer.json()
    assert shown["safe_to_stop"] is False
    assert [running["id"] for running in shown["running"]] == [str(mine.id)]
    assert shown["running_of_others"] == 1
    assert str(other.id) not in answer.content.decode()


def test_the_answer_waits_until_it_is_safe_or_the_time_is_over(operator: Caller) -> None:
    worker_row("w1@a")
    job = running_row("w1@a")
    began = time.monotonic()
    answer = operator.get("/workers/w1@a?safe_to_stop=1", prefer="wait=1")
    assert 1 <= time.monotonic() - began < 3
    assert answer["Preference-Applied"] == "wait=1"
    assert answer.json()["safe_to_stop"] is False
    Job.objects.filter(id=job.id).delete()
    answer = operator.get("/workers/w1@a?safe_to_stop=1", prefer="wait=10")
    assert answer.json()["safe_to_stop"] is True
    assert time.monotonic() - began < 5


def test_without_the_question_nothing_is_waited_for(operator: Caller) -> None:
    worker_row("w1@a")
    running_row("w1@a")
    answer = operator.get("/workers/w1@a", prefer="wait=10")
    assert "Preference-Applied" not in answer
    assert answer.json()["safe_to_stop"] is False
