"""The real Sentry and the real OpenTelemetry see jobs as the Celery tasks they are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tasks.models import Job
from tests.habits import habit
from tests.processes import environment, relay, wait_until, worker

pytestmark = pytest.mark.django_db(transaction=True)

CALLER = """
import django
django.setup()
from project.celery import app
from tests.sample_shop import tasks as shop

def call():
    calls = {
        "add": shop.add.delay(1, 2),
        "by name": app.send_task("tests.sample_shop.tasks.add", [3, 4]),
        "retry": shop.retry_by_hand.delay(countdown=0),
        "fail": shop.fail.delay("broken"),
    }
    return {name: result.id for name, result in calls.items()}
"""


def run_everything(caller: str, env: dict[str, str]) -> Any:
    """What the caller printed, after all its jobs have ended on a real worker."""
    env = {"DJANGO_SETTINGS_MODULE": "tests.observed_settings", **env}
    done = subprocess.run(
        [sys.executable, "-c", CALLER + caller],
        env=environment(env), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with worker("default", "-c", "1", env=env), relay():
        terminal = ("succeeded", "failed")
        wait_until(lambda: not Job.objects.exclude(state__in=terminal).exists(), within_s=60)
    return json.loads(done.stdout.splitlines()[-1])


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@habit("Sentry")
def test_sentry_gets_one_error_per_failed_job_none_per_retry_and_one_trace(tmp_path: Path) -> None:
    caller = """
import json, sentry_sdk
with sentry_sdk.start_transaction(name="checkout") as transaction:
    print(json.dumps({**call(), "trace": transaction.trace_id}))
"""
    sent = tmp_path / "sentry"
    called = run_everything(caller, {"SENTRY_FILE": str(sent)})

    events = [line for line in lines(sent) if line["type"] == "event"]
    [error] = [event for event in events if event.get("level") == "error"]
    assert error["exception"]["values"][-1]["type"] == "Unavailable"
    assert error["tags"]["celery_task_id"] == called["fail"]
    assert error["transaction"] == "tests.sample_shop.tasks.fail"

    runs = [
        line for line in lines(sent)
        if line["type"] == "transaction" and line["transaction"].startswith("tests.sample_shop")
    ]  # fmt: skip
    names = sorted(run["transaction"].rpartition(".")[2] for run in runs)
    assert names == ["add", "add", "fail", "retry_by_hand", "retry_by_hand"]
    assert {run["contexts"]["trace"]["trace_id"] for run in runs} == {called["trace"]}


@habit("OpenTelemetry")
def test_opentelemetry_joins_caller_and_run_into_one_trace(tmp_path: Path) -> None:
    exported = tmp_path / "spans"
    run_everything("import json; print(json.dumps(call()))", {"SPANS_FILE": str(exported)})

    spans = lines(exported)
    producers = {s["context"]["span_id"]: s for s in spans if s["kind"] == "SpanKind.PRODUCER"}
    consumers = [s for s in spans if s["kind"] == "SpanKind.CONSUMER"]
    assert sorted(s["name"].rpartition(".")[2] for s in consumers) == [
        "add", "add", "fail", "retry_by_hand", "retry_by_hand",
    ]  # fmt: skip
    assert len(producers) == 4
    for span in consumers:
        producer = producers[span["parent_id"]]
        assert producer["context"]["trace_id"] == span["context"]["trace_id"]
        assert producer["end_time"]
    errors = {s["name"] for s in consumers if s["status"]["status_code"] == "ERROR"}
    assert errors == {"run/tests.sample_shop.tasks.fail"}
