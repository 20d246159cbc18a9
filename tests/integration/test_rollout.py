"""``manage.py rollout_check``: what the code at hand could not run, without telling values."""

from __future__ import annotations

import json
import resource
import time
from io import StringIO
from typing import Any
from unittest import mock
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from tasks import rollout
from tasks.models import Job, Worker
from tasks.states import State
from tests import ledger_tasks, plain_tasks  # noqa: F401  (registers them)
from tests.job_rows import job_row

pytestmark = pytest.mark.django_db

SECRET = "hunter2"
UNFINISHED = [State.QUEUED, State.DISPATCHED, State.RUNNING]


def rollout_check(*options: str) -> tuple[int, str]:
    """Its exit code, and what it wrote."""
    out = StringIO()
    try:
        call_command("rollout_check", *options, stdout=out)
    except CommandError as exc:
        return exc.returncode, out.getvalue()
    return 0, out.getvalue()


def row(task: str, payload: Any, state: State = State.QUEUED, **fields: Any) -> Job:
    return job_row(state, task=task, payload=payload, **fields)


def test_when_all_fits_it_says_so_in_one_line() -> None:
    row("t.trace", {"note": "x"})
    row("t.keyed", {"order_id": 1, "amount": "1.5"})
    row("t.keyed", {"order_id": 2})
    row("t.gone", {}, State.SUCCEEDED)
    row("t.gone", {}, State.FAILED)
    assert rollout_check() == (0, "3 unfinished jobs in 3 shapes fit this code.\n")


def test_an_empty_ledger_fits() -> None:
    assert rollout_check() == (0, "0 unfinished jobs in 0 shapes fit this code.\n")


def test_every_kind_of_problem_is_a_line_with_its_task_shape_and_number() -> None:
    for _ in range(3):
        row("t.gone", {"b": 1, "a": [SECRET]})
    row("plain.trace", {"note": SECRET})
    row("t.trace", {"note": "x", "card": SECRET})
    row("t.trace", {})
    row("t.keyed", {"order_id": SECRET})
    row("t.trace", {"note": "fits"})
    code, text = rollout_check()
    assert code == 1
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines == [
        "TASK SHAPE JOBS PROBLEM",
        "plain.trace note:string 1 the task is no LedgerTask",
        "t.gone a:array, b:number 3 task unknown",
        "t.keyed order_id:string 1 $.order_id: Input should be a valid integer (1 of 1 sampled)",
        "t.trace no parameters 1 $.note: missing, task t.trace needs it (1 of 1 sampled)",
        "t.trace card:string, note:string 1 $.card: task t.trace has no such parameter"
        " (1 of 1 sampled)",
        "Of 8 unfinished jobs in 6 shapes.",
    ]
    assert SECRET not in text


def test_before_the_first_migration_nothing_waits() -> None:
    with connection.cursor() as cursor:  # the test's transaction puts it back
        cursor.execute("ALTER TABLE tasks_job RENAME TO elsewhere")
    assert rollout_check() == (0, "There is no ledger yet, so nothing waits.\n")


@pytest.mark.parametrize("state", UNFINISHED)
def test_whatever_is_not_finished_is_looked_at(state: State) -> None:
    row("t.gone", {}, state)
    assert rollout_check()[0] == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"due": False},
        {"hold_reason": "task unknown"},
        {"due": False, "hold_reason": "paused"},
    ],
)
def test_scheduled_and_held_jobs_are_looked_at_once(fields: dict[str, Any]) -> None:
    row("t.gone", {}, **fields)
    assert rollout.check().misfits[0].jobs == 1


def test_a_shape_that_hides_what_does_not_fit_is_sampled() -> None:
    """A type of JSON says nothing of UUIDs: one in a hundred payloads is none."""
    for number in range(30):
        row("t.typed", {"order": str(uuid4()) if number else SECRET, "price": "1"})
    report = rollout.check()
    (misfit,) = report.misfits
    assert (misfit.jobs, misfit.refused) == (30, 1)
    assert misfit.sampled > 20
    assert misfit.problem.startswith("$.order: ")


def test_one_queue_can_be_asked_alone() -> None:
    row("t.gone", {}, queue="bulk")
    assert rollout_check("--queue", "default")[0] == 0
    assert rollout_check("--queue", "bulk")[0] == 1


@pytest.mark.parametrize("state", UNFINISHED)
def test_jobs_of_a_queue_that_this_code_has_renamed_do_not_fit(state: State) -> None:
    row("t.trace", {"note": "x"}, state, queue="shipping")
    row("t.trace", {"note": "x"}, State.SUCCEEDED, queue="parcels")
    worker_row("old", queues=["shipping"])
    code, text = rollout_check()
    assert code == 1
    assert "queue shipping is not declared: no worker takes it. Keep the queue in the" in text
    assert "parcels" not in text
    assert rollout_check("--queue", "default")[0] == 0


def test_a_queue_that_a_task_names_and_a_worker_takes_needs_no_declaration() -> None:
    row("t.trace", {"note": "x"}, queue="by-hand")
    with mock.patch.object(rollout, "queues_of_tasks", return_value={"by-hand"}):
        assert rollout_check()[0] == 1
        worker_row("by-hand", queues=["by-hand"])
        assert rollout_check()[0] == 0


def worker_row(name: str, *, queues: list[str]) -> None:
    Worker.objects.create(
        name=name, host="h", pid=1, release="r", queues=queues, known_tasks=[], capacity=2,
    )  # fmt: skip


def test_programs_read_json() -> None:
    row("t.gone", {"a": 1})
    code, text = rollout_check("--json")
    assert code == 1
    assert json.loads(text) == {
        "jobs": 1,
        "shapes": 1,
        "misfits": [
            {
                "task": "t.gone", "shape": "a:number", "jobs": 1, "problem": "task unknown",
                "refused": 0, "sampled": 0,
            }
        ],
    }  # fmt: skip


def test_a_hundred_thousand_waiting_jobs_cost_seconds_and_hardly_any_memory() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO tasks_job (id, task, queue, idempotency_key, fingerprint, payload)"
            " SELECT gen_random_uuid(), 't.' || (ARRAY['trace', 'gone'])[1 + n %% 2], 'default',"
            " n::text, '', json_build_object('note', repeat('x', 500))"
            " FROM generate_series(1, %s) n",
            [100_000],
        )
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report = rollout.check()
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert (report.jobs, report.shapes, report.misfits[0].jobs) == (100_000, 2, 50_000)
    assert time.monotonic() - began < 15
    assert grown_kib < 20 * 1024


def test_many_shapes_are_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout, "MISFITS_MAX", 10)
    for number in range(25):
        row("t.gone", {f"p{number}": 1})
    report = rollout.check()
    assert (report.jobs, report.shapes, len(report.misfits)) == (25, 25, 10)
