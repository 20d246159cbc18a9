"""Pauses and limits over HTTP, in the admin and in the metrics: who may do and see what."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from tasks import limits, pauses
from tasks.models import Limit, Pause, Tenant
from tasks.states import Pausable
from tasks.topology import Downstream, Queue, Topology
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
    assert "acme" not in text


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
