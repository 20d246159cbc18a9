"""Pauses and limits over HTTP, in the admin and in the metrics: who may do and see what."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, transaction
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from tasks import limits, pauses, sql
from tasks.clients import Scope, create_client
from tasks.models import ApiClient, Limit, Pause, Tenant
from tasks.states import Pausable
from tasks.topology import Downstream, Queue, Topology
from tests import published_tasks  # noqa: F401  (registers them)
from tests.callers import Caller, api_client, person

pytestmark = pytest.mark.django_db(transaction=True)

BANK = Downstream("bank", max_concurrency=20, rate="50/s")
TOPOLOGY = Topology.of([Queue("limited", BANK), Queue("default")])
TENANT = {"kind": "tenant", "name": "acme"}
QUEUE = {"kind": "queue", "name": "default"}


@pytest.fixture(autouse=True)
def topology(settings: Any) -> Iterator[None]:
    settings.TASKS_TOPOLOGY = TOPOLOGY
    pauses.forget()
    yield
    pauses.forget()


@pytest.fixture
def operator() -> Caller:
    return person("operate_job", "view_job", staff=True)


# --- over HTTP ---------------------------------------------------------------------------


def test_pause_and_resume(operator: Caller) -> None:
    answer = operator.post("/pauses", {**QUEUE, "reason": "maintenance", "closed": True})
    assert answer.status_code == 201, answer.content
    body = answer.json()
    assert (body["kind"], body["name"], body["closed"]) == ("queue", "default", True)
    assert body["actor"].startswith("user:")
    assert operator.post("/pauses", {**QUEUE, "reason": "longer"}).status_code == 200
    assert [row["reason"] for row in operator.get("/pauses").json()] == ["longer"]
    queues = {queue["name"]: queue for queue in operator.get("/queues").json()}
    assert (queues["default"]["paused"], queues["default"]["pause_reason"]) == (True, "longer")
    assert (queues["limited"]["paused"], queues["limited"]["pause_reason"]) == (False, None)
    assert operator.delete("/pauses?kind=queue&name=default").status_code == 204
    assert operator.delete("/pauses?kind=queue&name=default").status_code == 404
    assert operator.get("/pauses").json() == []


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"kind": "worker", "name": "x"}, "$.kind"),
        ({**TENANT, "closed": True}, "$.closed"),
        ({**TENANT, "until": "2001-01-01T00:00:00Z"}, "$.until"),
        ({**TENANT, "until": "tomorrow"}, "$.until"),
        ({"kind": "tenant"}, "$.name"),
        ({**TENANT, "name": "x" * 256}, "$.name"),
    ],
)
def test_what_cannot_be_paused_is_422_and_named(
    operator: Caller, body: dict[str, Any], path: str
) -> None:
    answer = operator.post("/pauses", body)
    assert answer.status_code == 422, answer.content
    assert answer.json()["path"] == path
    assert not Pause.objects.exists()


def test_a_client_of_one_tenant_pauses_and_resumes_that_one_only() -> None:
    acme = api_client("acme", "operate")
    assert acme.post("/pauses", TENANT).status_code == 201
    for other in ({"kind": "tenant", "name": "globex"}, QUEUE, {"kind": "task", "name": "t"}):
        assert acme.post("/pauses", other).status_code == 403
        query = f"kind={other['kind']}&name={other['name']}"
        assert acme.delete(f"/pauses?{query}").status_code == 403
    assert Pause.objects.count() == 1
    assert acme.delete("/pauses?kind=tenant&name=acme").status_code == 204


def test_a_pause_that_a_job_asked_for_is_ended_by_whoever_operates_all(operator: Caller) -> None:
    limits.pause("downstream:bank", 1e9, "come back tomorrow")
    assert api_client("acme", "operate").delete("/limits/bank/pause").status_code == 403
    assert operator.delete("/limits/bank/pause").status_code == 204
    assert limits.status_of("downstream:bank").paused_s == 0
    assert operator.delete("/limits/bank/pause").status_code == 404
    with pytest.raises(CommandError, match="did you mean 'bank'"):
        command("resume", "downstream", "bnak")
    limits.pause("downstream:bank", 60, "")
    assert command("resume", "downstream", "bank") == "Resumed the downstream 'bank'.\n"


def test_a_client_of_one_tenant_does_not_see_the_others() -> None:
    for kind, name in (("tenant", "acme"), ("tenant", "globex"), ("queue", "default")):
        pauses.pause(Pausable(kind), name, actor="ann")
    seen = {row["name"] for row in api_client("acme", "operate").get("/pauses").json()}
    assert seen == {"acme", "default"}


def test_pauses_and_limits_need_the_scope_of_operators() -> None:
    caller = api_client("acme", "enqueue,read")
    for answer in (
        caller.get("/pauses"), caller.get("/limits"), caller.post("/pauses", TENANT),
        caller.delete("/pauses?kind=tenant&name=acme"),
    ):  # fmt: skip
        assert answer.status_code == 403


def test_limits_show_rate_pause_and_breaker(operator: Caller) -> None:
    [fresh] = operator.get("/limits").json()
    assert fresh == {
        "kind": "downstream", "name": "bank", "queues": ["limited"], "max_concurrency": 20,
        "in_flight": 0, "rate": "50/s", "tokens": 5.0, "paused_s": 0.0, "pause_reason": None,
        "breaker": "closed", "breaker_reason": None, "open_s": 0.0, "openings": 0,
    }  # fmt: skip
    limits.pause("downstream:bank", 60, "429 for customer 17")
    limits.open_breaker("downstream:bank", reason="4 of 4 runs failed", open_s=10)
    [shown] = operator.get("/limits").json()
    assert (shown["breaker"], shown["breaker_reason"]) == ("open", "4 of 4 runs failed")
    assert 9 < shown["open_s"] <= 10
    assert 59 < shown["paused_s"] <= 60
    assert shown["pause_reason"] == "429 for customer 17"
    [bound] = api_client("acme", "operate").get("/limits").json()
    assert bound["pause_reason"] is None  # the body that said it may be another tenant's
    queues = {queue["name"]: queue for queue in operator.get("/queues").json()}
    assert (queues["limited"]["breaker"], queues["default"]["breaker"]) == ("open", None)


# --- from the command line ---------------------------------------------------------------


def command(*arguments: str) -> str:
    out = StringIO()
    call_command(*arguments, stdout=out, stderr=out)
    return out.getvalue()


def test_the_commands_pause_list_and_resume() -> None:
    assert command("pause") == command("resume") == "Nothing is paused.\n"
    given = ("--reason", "move", "--for", "2h", "--closed", "--actor", "ann")
    assert command("pause", "queue", "limited", *given) == "Paused the queue 'limited'.\n"
    [row] = pauses.listed()
    assert (row.name, row.reason, row.closed, row.actor) == ("limited", "move", True, "ann")
    assert row.left_s is not None
    assert 7190 < row.left_s <= 7200
    assert "limited" in command("pause")
    assert "it was before" in command("pause", "queue", "limited")
    assert command("resume", "queue", "limited") == "Resumed the queue 'limited'.\n"
    assert pauses.listed() == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("queue", "limted"), "No queue 'limted' is known here; did you mean 'limited'"),
        (("task", "capture"), "'published.capture'?"),
        (("task", "zzz"), "No task 'zzz' is known here."),
        (("queue",), "Name the queue"),
        (("tenant", "acme", "--closed"), "Only a queue"),
        (("tenant", "acme", "--until", "2001-01-01T00:00:00Z"), "is over"),
        (("tenant", "acme", "--for", "2 hours"), "as 90s, 30m, 2h or 1d"),
        (("tenant", "acme", "--until", "2090-01-01T00:00:00Z", "--for", "1h"), "not allowed"),
    ],
)
def test_what_is_misspelt_or_makes_no_sense_pauses_nothing(
    arguments: tuple[str, ...], says: str
) -> None:
    with pytest.raises(CommandError, match=re.escape(says)):
        command("pause", *arguments)
    assert pauses.listed() == []


def test_an_unknown_name_is_paused_by_force() -> None:
    command("pause", "queue", "of-another-release", "--force")
    assert pauses.is_queue_paused("of-another-release")


def test_what_a_live_worker_knows_is_known() -> None:
    sql.execute(
        "INSERT INTO tasks_worker (name, host, pid, queues, known_tasks, capacity)"
        " VALUES ('w', 'h', 1, '[\"theirs\"]', '[\"of.theirs\"]', 1)",
        [],
    )
    command("pause", "queue", "theirs")
    command("pause", "task", "of.theirs")
    command("pause", "tenant", "whoever")
    assert len(pauses.listed()) == 3


def test_resuming_what_is_not_paused_names_what_is() -> None:
    command("pause", "queue", "limited")
    with pytest.raises(CommandError, match="'limted' is not paused; did you mean 'limited'"):
        command("resume", "queue", "limted")


def test_cancelling_by_a_name_that_nobody_knows_says_so() -> None:
    said = command("cancel", "--task", "published.captur", "--reason", "x", "--dry-run")
    assert "No task 'published.captur' is known here; did you mean 'published.capture'?" in said
    assert "Would cancel 0 jobs." in said
    assert "known" not in command("cancel", "--queue", "limited", "--reason", "x", "--dry-run")


# --- clients of every tenant -------------------------------------------------------------


def test_a_client_of_every_tenant_operates_the_whole_installation() -> None:
    token = command("api_client", "ops", "--every-tenant", "--scopes", "read,operate").strip()
    ops = Caller({"Authorization": f"Bearer {token}"})
    job_id = api_client("acme").enqueued()
    assert ops.get(f"/jobs/{job_id}").json()["tenant"] == "acme"
    assert [job["tenant"] for job in ops.get("/jobs").json()["jobs"]] == ["acme"]
    for wish in (QUEUE, TENANT, {"kind": "task", "name": "published.capture"}):
        answer = ops.post("/pauses", wish)
        assert (answer.status_code, answer.json()["warning"]) == (201, None)
        assert ops.delete(f"/pauses?kind={wish['kind']}&name={wish['name']}").status_code == 204
    assert ops.post("/jobs/cancel", {"task": "published.capture", "reason": "x"}).json()[
        "cancelled"
    ] == 1  # fmt: skip
    assert ops.enqueue("published.capture", {"order_id": 1}, key="k").status_code == 403


def test_a_client_of_every_tenant_that_only_reads_changes_nothing() -> None:
    token = command("api_client", "look", "--every-tenant", "--scopes", "read").strip()
    look = Caller({"Authorization": f"Bearer {token}"})
    job_id = api_client("acme").enqueued()
    assert look.get(f"/jobs/{job_id}").status_code == 200
    assert look.post(f"/jobs/{job_id}/cancel").status_code == 403
    assert look.post("/pauses", QUEUE).status_code == 403


def test_who_enqueues_without_operating_is_never_of_every_tenant() -> None:
    """It could cancel the jobs of the others."""
    with pytest.raises(CommandError, match="read,operate"):
        command("api_client", "shop", "--every-tenant")
    with pytest.raises(IntegrityError), transaction.atomic():
        create_client("shop", tenant="", scopes=[Scope.ENQUEUE], every_tenant=True)
    admin = person("add_apiclient", "view_apiclient", staff=True)
    given = {"name": "shop", "every_tenant": "on", "may_enqueue": "on"}
    assert "needs the scope operate" in admin.http.post(
        "/admin/tasks/apiclient/add/", given
    ).content.decode()  # fmt: skip
    assert not ApiClient.objects.exists()


def test_a_client_of_no_tenant_is_told_who_may_pause_a_queue() -> None:
    answer = api_client("", "operate").post("/pauses", QUEUE)
    assert answer.status_code == 403
    assert "API client of every tenant" in answer.json()["detail"]


def test_a_misspelt_name_is_paused_over_http_and_in_the_admin_with_a_warning(
    operator: Caller,
) -> None:
    answer = operator.post("/pauses", {"kind": "queue", "name": "limted"})
    assert "did you mean 'limited'?" in answer.json()["warning"]
    added = operator.http.post(
        "/admin/tasks/pause/add/", {"kind": "queue", "name": "defalt"}, follow=True
    )
    assert "did you mean &#x27;default&#x27;?" in added.content.decode()


# --- in the metrics ----------------------------------------------------------------------


def test_metrics_show_breakers_tokens_and_pauses_without_naming_tenants(client: Client) -> None:
    limits.open_breaker("downstream:bank", reason="x", open_s=10)
    limits.pause("downstream:bank", 60, "")
    for kind, name in (("tenant", "acme"), ("tenant", "globex"), ("queue", "default")):
        pauses.pause(Pausable(kind), name, actor="ann")
    text = client.get("/metrics").content.decode()
    figures = {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert figures["tasks_breaker_state", "bank"] == 2
    assert figures["tasks_limit_tokens", "bank"] == 5
    assert 59 < figures["tasks_limit_paused_seconds", "bank"] <= 60
    assert figures["tasks_paused", "queue", "default"] == 1
    assert figures["tasks_paused", "tenant", ""] == 2
    assert "acme" not in "".join(re.findall(r"^tasks_(?:paused|limit|breaker).*$", text, re.M))


# --- in the admin ------------------------------------------------------------------------


def test_adding_a_pause_pauses_and_deleting_it_resumes(operator: Caller) -> None:
    added = operator.http.post("/admin/tasks/pause/add/", {**QUEUE, "reason": "m"}, follow=True)
    assert added.status_code == 200
    [row] = pauses.listed()
    assert (row.kind, row.name, row.reason) == (Pausable.QUEUE, "default", "m")
    assert row.actor.startswith("user-")
    pk = Pause.objects.get().pk
    url = f"/admin/tasks/pause/{pk}/"
    assert "default" in operator.http.get("/admin/tasks/pause/").content.decode()
    operator.http.post(f"{url}change/", {"reason": "longer", "kind": "tenant", "name": "x"})
    assert [(r.kind, r.name, r.reason) for r in pauses.listed()] == [
        (Pausable.QUEUE, "default", "longer")
    ]
    operator.http.post(f"{url}delete/", {"post": "yes"})
    assert pauses.listed() == []


@pytest.mark.parametrize(
    "wrong", [{"closed": "on"}, {"until_0": "2001-01-01", "until_1": "00:00:00"}]
)
def test_the_form_refuses_what_makes_no_sense(operator: Caller, wrong: dict[str, str]) -> None:
    answer = operator.http.post("/admin/tasks/pause/add/", {**TENANT, **wrong})
    assert "errorlist" in answer.content.decode()
    assert not Pause.objects.exists()


def test_who_may_not_operate_may_not_pause() -> None:
    looker = person("view_job", "view_pause", staff=True)
    assert looker.http.get("/admin/tasks/pause/").status_code == 200
    assert looker.http.post("/admin/tasks/pause/add/", QUEUE).status_code == 403
    assert not Pause.objects.exists()


def test_limits_are_shown_with_state_and_reason_and_cannot_be_edited() -> None:
    limits.open_breaker("downstream:bank", reason="4 of 4 runs failed", open_s=60)
    looker = person("view_limit", staff=True)
    page = looker.http.get("/admin/tasks/limit/").content.decode()
    assert "4 of 4 runs failed" in page
    assert "open" in page
    url = f"/admin/tasks/limit/{Limit.objects.get().pk.replace(':', '_3A')}/change/"
    detail = looker.http.get(url).content.decode()
    assert "4 of 4 runs failed" in detail
    assert 'name="_save"' not in detail


def test_tenants_get_weights_and_caps(operator: Caller) -> None:
    operator.http.post(
        "/admin/tasks/tenant/add/", {"name": "acme", "weight": "3", "max_running": "5"}
    )
    assert list(Tenant.objects.values_list("name", "weight", "max_running")) == [("acme", 3, 5)]
    answer = operator.http.post("/admin/tasks/tenant/add/", {"name": "b", "weight": "0"})
    assert "errorlist" in answer.content.decode()


def test_a_pause_is_shown_with_its_end(operator: Caller) -> None:
    until = (datetime.now(UTC) + timedelta(hours=1)).replace(microsecond=0)
    operator.post("/pauses", {**TENANT, "until": until.isoformat()})
    [row] = operator.get("/pauses").json()
    assert datetime.fromisoformat(row["until"]) == until
