"""What a view of the project answers when ``enqueue`` refuses and it catches nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import path

from tasks import pauses
from tasks.enqueue import enqueue
from tasks.errors import Rejected
from tasks.models import Job
from tasks.states import Pausable
from tasks.topology import Queue, Topology
from tests import published_tasks

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__)]


def pay(request: HttpRequest) -> HttpResponse:
    """As the README shows it; what it writes before must not survive a refusal."""
    Group.objects.create(name="written before")
    given = request.GET.get("order_id", "1")
    payload = {"order_id": int(given) if given.isdigit() else given}
    done = enqueue(published_tasks.capture, payload, key=request.GET["key"])
    return HttpResponse(f"accepted as {done.job_id}", status=202)


def misspelt(request: HttpRequest) -> HttpResponse:
    enqueue("no.such.task", {})
    raise AssertionError("refused above")


def catches(request: HttpRequest) -> HttpResponse:
    try:
        enqueue(published_tasks.capture, {"order_id": 1}, key="another")
    except Rejected as exc:
        return HttpResponse("come back", status=200, headers={"Retry-After": str(exc.retry_after)})
    raise AssertionError("refused above")


def broken(request: HttpRequest) -> HttpResponse:
    raise ZeroDivisionError


async def awaits(request: HttpRequest) -> HttpResponse:
    raise Rejected("queue full", 7)


urlpatterns = [path(view.__name__, view) for view in (pay, misspelt, catches, broken, awaits)]


@pytest.fixture(autouse=True)
def full_after_one(settings: Any) -> Iterator[None]:
    settings.TASKS_TOPOLOGY = Topology.of([Queue("default", max_waiting=1)])
    pauses.forget()
    yield
    pauses.forget()


@pytest.fixture(params=[False, True], ids=["autocommit", "ATOMIC_REQUESTS"])
def atomic_requests(request: Any, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", request.param)
    return bool(request.param)


def problem(answer: Any, status: int, name: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.content
    assert answer["Content-Type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["type"] == f"/problems/{name}"
    return body


def test_a_full_queue_is_429_with_retry_after(client: Client, atomic_requests: bool) -> None:
    assert client.get("/pay?key=a").status_code == 202
    Group.objects.all().delete()
    answer = client.get("/pay?key=b")
    assert problem(answer, 429, "rejected")["reason"] == "queue full"
    assert int(answer["Retry-After"]) >= 1
    assert Job.objects.count() == 1
    assert Group.objects.exists() is not atomic_requests


def test_a_closed_queue_is_503(client: Client, atomic_requests: bool) -> None:
    pauses.pause(Pausable.QUEUE, "default", actor="ann", closed=True)
    answer = client.get("/pay?key=a")
    problem(answer, 503, "queue-closed")
    assert "Retry-After" in answer


def test_a_key_used_for_another_request_is_422(client: Client, atomic_requests: bool) -> None:
    assert client.get("/pay?key=a&order_id=1").status_code == 202
    Group.objects.all().delete()
    assert problem(client.get("/pay?key=a&order_id=2"), 422, "key-conflict")["fields"] == [
        "order_id"
    ]


def test_what_cannot_be_accepted_is_400_or_422(client: Client) -> None:
    problem(client.get("/pay?key="), 400, "invalid-key")
    Group.objects.all().delete()
    assert problem(client.get("/pay?key=a&order_id=x"), 422, "invalid")["path"] == "$.order_id"
    problem(client.get("/misspelt"), 422, "unknown-task")


def test_a_view_that_catches_the_refusal_answers_itself(client: Client) -> None:
    assert client.get("/pay?key=a").status_code == 202
    answer = client.get("/catches")
    assert (answer.status_code, answer.content) == (200, b"come back")


def test_other_exceptions_stay_what_they_are(client: Client) -> None:
    with pytest.raises(ZeroDivisionError):
        client.get("/broken")


def test_an_async_view_is_answered_alike() -> None:
    answer: Any = asyncio.run(AsyncClient().get("/awaits"))
    problem(answer, 429, "rejected")
    assert answer["Retry-After"] == "7"


def test_a_rejection_names_its_queue() -> None:
    enqueue(published_tasks.capture, {"order_id": 1}, key="a")
    with pytest.raises(Rejected, match="queue 'default': queue full; try again in") as caught:
        enqueue(published_tasks.capture, {"order_id": 1}, key="b")
    assert caught.value.queue == "default"
