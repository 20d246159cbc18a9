"""Revoking cancels the job, whoever listens at that moment."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any
from uuid import uuid4

import pytest
from celery import group
from kombu.exceptions import OperationalError

from project.celery import app
from tasks import ledger
from tasks.models import Job, OperatorAction
from tasks.testing import run_jobs
from tests.broker import Corner, trace_table
from tests.habits import habit
from tests.ledger_tasks import trace
from tests.processes import environment, relay, wait_until, worker
from tests.sample_shop import tasks as shop

LEDGER_TASKS = ("default", "-c", "1", "-I", "tests.ledger_tasks")


class NoBroker:
    """Any attempt to talk to it is an error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("celery.app.control.Mailbox._broadcast", self.talk)

    def talk(self, *args: Any, **kwargs: Any) -> None:
        raise OperationalError("no broker")


@pytest.fixture
def no_broker(monkeypatch: pytest.MonkeyPatch) -> NoBroker:
    return NoBroker(monkeypatch)


@habit("revoke")
@pytest.mark.django_db(transaction=True)
def test_a_job_revoked_with_no_worker_up_never_runs() -> None:
    corner = Corner()
    with trace_table() as notes:
        revoked = [trace.delay(f"revoked {i}") for i in range(3)]
        scheduled = trace.apply_async(("later",), countdown=1)
        for result in (*revoked, scheduled):
            result.revoke()
        for _ in range(2):  # "and restart the worker"
            with worker(*LEDGER_TASKS, env=corner.env), relay(env=corner.env):
                alive = trace.delay("alive")
                wait_until(alive.ready, within_s=30, what="a later job runs")
        assert notes.notes == ["alive", "alive"]
    assert {result.status for result in revoked} == {"REVOKED"}
    actions = OperatorAction.objects.values_list("action", "actor")
    assert list(actions) == [("cancel", "celery revoke")] * 4
    corner.clear()


@habit("revoke")
@pytest.mark.django_db
@pytest.mark.parametrize("as_list", [True, False])
def test_one_id_or_a_list_and_no_broker_is_needed(no_broker: NoBroker, as_list: bool) -> None:
    ids = [shop.note.delay("x").id for _ in range(2)]
    for given in [ids] if as_list else ids:
        app.control.revoke(given)
    assert run_jobs() == []
    assert Job.objects.filter(state="cancelled").count() == 2


@habit("revoke")
@pytest.mark.django_db
def test_a_job_in_its_retry_pause_is_cancelled(no_broker: NoBroker) -> None:
    result = shop.retry_by_hand.delay(countdown=60)
    run_jobs()
    result.revoke()
    assert run_jobs(include_scheduled=True) == []
    assert Job.objects.get().state == "cancelled"


@habit("revoke")
@pytest.mark.django_db
def test_a_running_job_is_asked_to_stop_and_a_finished_one_is_left_alone(
    no_broker: NoBroker,
) -> None:
    running, done = shop.add.delay(1), shop.note.delay("done")
    number = ledger.dispatch_here(Job.objects.get(id=running.id).id)
    ledger.claim(Job.objects.get(id=running.id).id, number, worker="w", release="", lease_s=60)
    run_jobs()
    running.revoke()
    done.revoke()
    assert Job.objects.get(id=running.id).cancel_requested_at is not None
    assert Job.objects.get(id=done.id).state == "succeeded"


@habit("GroupResult.revoke")
@pytest.mark.django_db
def test_revoking_a_group_cancels_its_jobs(no_broker: NoBroker) -> None:
    group(shop.add.s(i) for i in range(3)).apply_async().revoke()
    assert Job.objects.filter(state="cancelled").count() == 3


@habit("revoke")
@pytest.mark.django_db
def test_what_is_no_job_is_revoked_by_celery(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []

    def broadcast(self: Any, command: str, arguments: Any = None, *args: Any, **kw: Any) -> None:
        sent.append((command, arguments["task_id"]))

    monkeypatch.setattr("celery.app.control.Control.broadcast", broadcast)
    plain, job = str(uuid4()), shop.add.delay(1)
    app.control.revoke([plain, job.id])
    app.control.terminate(plain)
    assert sent == [("revoke", [plain]), ("revoke", [plain])]


@habit("revoke")
@pytest.mark.django_db(transaction=True)
def test_revoke_works_inside_a_running_event_loop(no_broker: NoBroker) -> None:
    result = shop.add.delay(1)

    async def revoke() -> None:
        result.revoke()

    asyncio.run(revoke())
    assert result.status == "REVOKED"


@habit("revoke_by_stamped_headers")
def test_revoking_by_stamps_is_refused() -> None:
    with pytest.raises(TypeError, match="revoke their ids"):
        app.control.revoke_by_stamped_headers({"batch": "b-1"})


@habit("celery control revoke")
@pytest.mark.django_db(transaction=True)
def test_the_command_line_revokes_without_a_worker() -> None:
    result = shop.add.delay(1)
    command = [sys.executable, "-m", "celery", "-A", "project", "control", "revoke", result.id]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"cancelled {result.id}" in done.stdout
    assert result.status == "REVOKED"
