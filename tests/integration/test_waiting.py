"""Held jobs say why they wait, and for how long where that can be known."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from tasks import limits, pauses
from tasks.models import Job, Limit, QueueState, Tenant, Worker
from tasks.states import TERMINAL, Hold, Pausable, State
from tasks.topology import Downstream, Queue, Topology
from tasks.waiting import AHEAD, AHEAD_MAX, Waiting, ahead, parameters_of, waiting_for
from tests.broker import execute
from tests.callers import api_client, person
from tests.job_rows import job_row

pytestmark = pytest.mark.django_db

BANK = Downstream("bank", max_concurrency=2, rate="6/m")
TOPOLOGY = Topology.of([Queue("limited", BANK), Queue("default")])


@pytest.fixture(autouse=True)
def topology(settings: Any) -> Iterator[None]:
    settings.TASKS_TOPOLOGY = TOPOLOGY
    pauses.forget()
    for queue in TOPOLOGY.queues:
        Worker.objects.create(
            name=f"w@{queue}", host="h", pid=1, queues=[queue], known_tasks=[], capacity=4
        )
    yield
    pauses.forget()


def row(**fields: Any) -> Job:
    return Job.objects.get(id=job_row(**fields).id)


def why(job: Job) -> Waiting:
    found = waiting_for(job)
    assert found is not None
    return found


def pace(queue: str, per_s: float) -> None:
    QueueState.objects.create(queue=queue, per_s=per_s)


@pytest.mark.parametrize("state", [State.RUNNING, *sorted(TERMINAL)])
def test_what_runs_or_has_ended_does_not_wait(state: State) -> None:
    assert waiting_for(row(state=state)) is None


@pytest.mark.parametrize(
    ("reason", "waits_for"),
    [
        (Hold.ORDER, "order"),
        (Hold.TASK_UNKNOWN, "hold"),
        (f"{Hold.INCOMPATIBLE}: x", "hold"),
        (Hold.PAUSED, "pause"),
    ],
)
def test_a_held_job_says_what_holds_it(reason: str, waits_for: str) -> None:
    found = why(row(hold_reason=reason))
    assert (found.waits_for, found.estimate_s) == (waits_for, None)


def test_a_job_behind_another_of_its_ordering_key_says_so_before_it_is_held() -> None:
    first, second = row(ordering_key="k"), row(ordering_key="k")
    assert why(second).waits_for == "order"
    assert why(second).behind == first.id
    assert why(first).waits_for == "capacity"
    assert why(row(ordering_key="k", tenant="other")).waits_for == "capacity"


def test_a_job_names_the_head_of_its_key_to_callers_and_in_the_admin() -> None:
    first = row(ordering_key="k", tenant="acme", run_at=datetime(2090, 1, 1, tzinfo=UTC), due=False)
    row(ordering_key="k", tenant="acme", hold_reason=Hold.ORDER)
    last = row(ordering_key="k", tenant="acme", hold_reason=Hold.ORDER)
    shown = api_client("acme").get(f"/jobs/{last.id}").json()
    assert (shown["waiting_for"], shown["waiting_behind"]) == ("order", str(first.id))
    assert (
        shown["waiting_detail"] == f"Job {first.id} of its ordering key goes first and is queued."
    )
    page = person("view_job", staff=True).http.get(f"/admin/tasks/job/{last.id}/change/")
    assert f'<a href="/admin/tasks/job/{first.id}/change/">' in page.content.decode()


def test_a_replayed_job_that_runs_is_named_although_it_is_younger() -> None:
    job = row(ordering_key="k", hold_reason=Hold.ORDER)
    younger = row(ordering_key="k", state=State.RUNNING)
    assert why(job).behind == younger.id


def test_a_job_whose_head_has_just_ended_waits_for_nobody() -> None:
    row(ordering_key="k", state=State.FAILED)
    found = why(row(ordering_key="k", hold_reason=Hold.ORDER))
    assert (found.waits_for, found.behind) == ("order", None)


def test_a_scheduled_job_knows_its_time() -> None:
    found = why(row(due=False, run_at=datetime.now(UTC) + timedelta(seconds=90)))
    assert found.waits_for == "time"
    assert found.estimate_s == pytest.approx(90, abs=3)


def test_a_retry_says_which_run_it_waits_for() -> None:
    found = why(row(due=False, attempts=2, run_at=datetime(2090, 1, 1, tzinfo=UTC)))
    assert found.detail == "Not before 2090-01-01 00:00:00 UTC for run 3."


@pytest.mark.parametrize(
    ("kind", "name", "says"),
    [
        (Pausable.QUEUE, "default", "The queue default is paused until"),
        (Pausable.TASK, "t.trace", "The task t.trace is paused until"),
        (Pausable.TENANT, "acme", "All jobs of the tenant are paused until"),
    ],
)
def test_a_paused_job_says_until_when_and_why(kind: Pausable, name: str, says: str) -> None:
    job = row(tenant="acme")
    until = datetime.now(UTC) + timedelta(seconds=60)
    pauses.pause(kind, name, actor="ann", reason="migration", until=until)
    found = why(job)
    assert found.waits_for == "pause"
    assert found.detail.startswith(says)
    assert found.detail.endswith(": migration.")
    assert found.estimate_s == pytest.approx(60, abs=3)
    pauses.pause(kind, name, actor="ann")
    assert why(job).estimate_s is None


def test_anothers_pause_is_none_of_ours() -> None:
    pauses.pause(Pausable.TENANT, "globex", actor="ann")
    assert why(row(tenant="acme")).waits_for == "capacity"


def test_a_pause_by_a_job_tells_the_time_and_not_what_another_tenants_body_said() -> None:
    limits.pause("downstream:bank", 30, "429 for customer 17")
    found = why(row(queue="limited"))
    assert found.waits_for == "pause"
    assert "17" not in found.detail
    assert found.estimate_s == pytest.approx(30, abs=3)


def test_an_open_breaker_says_why_and_when_it_is_tried() -> None:
    limits.open_breaker("downstream:bank", reason="4 of 4 runs failed in 30 s; last: X", open_s=10)
    job = row(queue="limited")
    found = why(job)
    assert (found.waits_for, found.estimate_s) == ("breaker", None)
    assert "bank fails (4 of 4 runs failed in 30 s; last: X); it is tried again in" in found.detail
    execute("UPDATE tasks_limit SET open_until = clock_timestamp()")
    assert "one job at a time tries it" in why(job).detail


def test_without_a_worker_nobody_knows_how_long() -> None:
    pace("default", 10.0)
    Worker.objects.all().delete()
    found = why(row())
    assert (found.waits_for, found.estimate_s) == ("capacity", None)
    assert found.detail == "No live worker serves the queue default."


def test_a_full_downstream_is_a_limit() -> None:
    for _ in range(2):
        job_row(State.RUNNING, queue="limited")
    found = why(row(queue="limited"))
    assert found.waits_for == "limit"
    assert found.detail == "All 2 calls that bank may get at once are under way."


@pytest.mark.parametrize("whose", ["tenant", "queue"])
def test_what_its_tenant_may_have_under_way_is_a_limit(whose: str, settings: Any) -> None:
    if whose == "tenant":
        Tenant.objects.create(name="acme", max_running=1)
    else:
        settings.TASKS_TOPOLOGY = Topology.of([Queue("default", max_running_per_tenant=1)])
    row(state=State.RUNNING, tenant="acme")
    pace("default", 10)
    found = why(row(tenant="acme"))
    assert (found.waits_for, found.estimate_s) == ("limit", None)
    assert "No more than 1 jobs of its tenant" in found.detail
    assert why(row(tenant="globex")).waits_for == "capacity"


def test_a_used_up_rate_is_a_limit_and_says_how_long() -> None:
    Limit.objects.create(name="downstream:bank", tokens=0)
    for _ in range(3):
        job_row(queue="limited")
    found = why(row(queue="limited"))
    assert (found.waits_for, found.detail) == ("limit", "bank may be called 6 times a minute.")
    assert found.estimate_s == 40.0


# --- how long ----------------------------------------------------------------------------


def test_the_estimate_counts_what_is_before_it() -> None:
    pace("default", 2.0)
    for _ in range(9):
        job_row(tenant="acme")
    found = why(row(tenant="acme"))
    assert found.waits_for == "capacity"
    assert found.estimate_s == pytest.approx(5.0, rel=0.2)


def test_without_a_pace_there_is_no_estimate() -> None:
    assert why(row()).estimate_s is None
    pace("default", 2.0)
    execute("UPDATE tasks_queuestate SET per_s_at = per_s_at - interval '60 seconds'")
    assert why(row()).estimate_s is None


def test_tenants_take_turns_so_anothers_backlog_counts_only_up_to_ones_own() -> None:
    for _ in range(50):
        job_row(tenant="big")
    assert ahead(row(tenant="small")) == 1
    assert ahead(row(tenant="small")) == 3
    assert ahead(row(tenant="big", priority=5)) == 1
    assert ahead(row(tenant="big")) == 53  # no more than there are


def test_beyond_what_is_counted_nobody_says_a_number() -> None:
    execute(
        "INSERT INTO tasks_job (id, task, queue, tenant, idempotency_key, fingerprint, payload)"
        " SELECT gen_random_uuid(), 't', 'default', 'acme', n::text, 'f', '{}'"
        " FROM generate_series(1, %s) n", AHEAD_MAX,
    )  # fmt: skip
    pace("default", 1000.0)
    assert why(row(tenant="acme")).estimate_s is None
    assert why(row(tenant="other")).estimate_s == pytest.approx(0.0, abs=0.1)


def test_counting_what_is_before_it_never_reads_the_table_from_end_to_end() -> None:
    """Among 20,000 finished jobs and as many of another tenant."""
    execute(
        "INSERT INTO tasks_job (id, task, queue, tenant, idempotency_key, fingerprint, payload,"
        " state, finished_at) SELECT gen_random_uuid(), 't', 'default', 'big', n::text, 'f', '{}',"
        " CASE WHEN n <= 20000 THEN 'succeeded' ELSE 'queued' END,"
        " CASE WHEN n <= 20000 THEN now() END FROM generate_series(1, 40000) n"
    )
    execute("ANALYZE tasks_job")
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {AHEAD}", parameters_of(row(tenant="small")))
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "tasks_job_due" in plan
    assert "Seq Scan on tasks_job" not in plan


# --- where it is shown -------------------------------------------------------------------


def test_callers_and_the_admin_see_it(client: Client) -> None:
    job = row(tenant="acme")
    pauses.pause(Pausable.TENANT, "acme", actor="ann", reason="unpaid")
    shown = api_client("acme").get(f"/jobs/{job.id}").json()
    assert shown["waiting_for"] == "pause"
    assert shown["waiting_detail"] == "All jobs of the tenant are paused: unpaid."
    assert shown["estimate_s"] is None
    page = person("view_job", staff=True).http.get(f"/admin/tasks/job/{job.id}/change/")
    assert "pause: All jobs of the tenant are paused: unpaid." in page.content.decode()
