"""The HTTP interface: what each call answers, and who sees what."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, connections
from django.test import Client

from devtools.ports import free_port
from tasks import api, long_poll, seats
from tasks.errors import Rejected
from tasks.models import Job, OperatorAction
from tests import published_tasks  # noqa: F401  (registers them)
from tests.callers import Caller, api_client, named, person, rows, set_state
from tests.job_rows import job_row
from tests.processes import web

pytestmark = pytest.mark.django_db

CAPTURE = "published.capture"


@pytest.fixture
def acme() -> Caller:
    return api_client("acme")


@pytest.fixture
def globex() -> Caller:
    return api_client("globex")


def problem(answer: Any, status: int, name: str) -> dict[str, Any]:
    """The body of a problem of this status and type."""
    assert answer.status_code == status, answer.content
    assert answer["Content-Type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert (body["type"], body["status"]) == (f"/problems/{name}", status)
    assert body["title"]
    assert body["detail"]
    return body


# --- enqueue -----------------------------------------------------------------------------


def test_a_new_job_is_202_with_its_address(acme: Caller) -> None:
    answer = acme.enqueue(CAPTURE, {"order_id": 7}, key="order-7")
    body = answer.json()
    assert answer.status_code == 202
    assert body["created"] is True
    assert body["state"] == "queued"
    assert body["derived"] is False
    assert answer["Location"] == f"/api/jobs/{body['id']}"
    assert "Idempotent-Replayed" not in answer
    assert datetime.fromisoformat(body["key_expires_at"]) > datetime.now(UTC) + timedelta(days=6)
    assert acme.get(f"/jobs/{body['id']}").status_code == 200


def test_a_repeat_is_200_with_the_same_id_and_says_so(acme: Caller) -> None:
    first = acme.enqueue(CAPTURE, {"order_id": 7, "note": "x"}, key="order-7")
    again = acme.enqueue(CAPTURE, {"note": "x", "order_id": 7}, key="order-7", priority=5)
    assert again.status_code == 200
    assert again.json()["id"] == first.json()["id"]
    assert again.json()["created"] is False
    assert again["Idempotent-Replayed"] == "true"
    assert again["Location"] == first["Location"]
    assert rows() == 1


def test_a_key_with_another_payload_is_422_and_names_fields_not_values(acme: Caller) -> None:
    first = acme.enqueue(CAPTURE, {"order_id": 100, "card": "4242"}, key="order-7")
    other = acme.enqueue(CAPTURE, {"order_id": 200, "card": "1881"}, key="order-7")
    body = problem(other, 422, "key-conflict")
    assert sorted(body["fields"]) == ["card", "order_id"]
    assert b"4242" not in other.content
    assert b"1881" not in other.content
    assert acme.get(f"/jobs/{first.json()['id']}").json()["payload"]["order_id"] == 100


def test_a_key_with_another_task_is_422(acme: Caller) -> None:
    acme.enqueue(CAPTURE, {"order_id": 7}, key="order-7")
    body = problem(
        acme.enqueue("published.remind", {"order_id": 7}, key="order-7"), 422, "key-conflict"
    )
    assert body["fields"] == ["task"]
    assert rows() == 1


def test_two_tenants_with_the_same_key_have_two_jobs(acme: Caller, globex: Caller) -> None:
    ours = acme.enqueue(CAPTURE, {"order_id": 1}, key="1")
    theirs = globex.enqueue(CAPTURE, {"order_id": 2}, key="1")
    assert (ours.status_code, theirs.status_code) == (202, 202)
    assert acme.get(ours["Location"].removeprefix("/api")).json()["payload"]["order_id"] == 1
    assert globex.get(theirs["Location"].removeprefix("/api")).json()["payload"]["order_id"] == 2


def test_the_tenant_comes_from_the_credentials_never_from_the_body(acme: Caller) -> None:
    answer = acme.enqueue(CAPTURE, {"order_id": 7}, key="order-7", tenant="globex")
    assert problem(answer, 422, "invalid")["path"] == "$.tenant"
    assert rows() == 0


def test_without_a_key_the_answer_is_400(acme: Caller) -> None:
    problem(acme.enqueue(CAPTURE, {"order_id": 7}), 400, "invalid-key")
    assert rows() == 0


@pytest.mark.parametrize("key", ["", " ", "   ", "a b", "x" * 256, "x" * 4096, "kéy", "a\tb"])
def test_a_key_that_cannot_be_stored_is_400_with_the_limit(acme: Caller, key: str) -> None:
    body = problem(acme.enqueue(CAPTURE, {"order_id": 7}, key=key), 400, "invalid-key")
    assert "1-255 visible ASCII characters" in body["detail"]
    assert rows() == 0


@pytest.mark.parametrize("key", ["x", "x" * 255, "Order-7", "!~"])
def test_keys_up_to_the_limit_are_kept_as_they_are(acme: Caller, key: str) -> None:
    assert acme.enqueue(CAPTURE, {"order_id": 7}, key=key).status_code == 202
    assert Job.objects.get().idempotency_key == key


def test_a_task_with_a_key_template_needs_no_key(acme: Caller) -> None:
    first = acme.enqueue("published.remind", {"order_id": 7})
    again = acme.enqueue("published.remind", {"order_id": 7})
    assert first.status_code == 202
    assert first.json()["derived"] is True
    assert again.json()["id"] == first.json()["id"]
    assert Job.objects.get().idempotency_key == "remind:7"


def test_a_double_click_on_a_task_with_a_window_is_one_job(acme: Caller) -> None:
    first = acme.enqueue("published.click", {"button": "buy"})
    again = acme.enqueue("published.click", {"button": "buy"})
    assert (first.status_code, again.status_code) == (202, 200)
    assert first.json()["derived"] is again.json()["derived"] is True
    assert rows() == 1


def test_a_task_whose_name_is_near_is_suggested_to_those_who_may_enqueue_it(acme: Caller) -> None:
    near = problem(acme.enqueue("published.captur", {}, key="k"), 422, "unknown-task")
    assert near["detail"].endswith("enqueued here; did you mean 'published.capture'?")
    hidden = problem(acme.enqueue("internal.purg", {}, key="k"), 422, "unknown-task")
    assert "internal" not in str(hidden)


@pytest.mark.parametrize(
    "name", ["no.such.task", "internal.purge", "celery.backend_cleanup", "x\u0660"]
)
def test_unknown_and_unpublished_tasks_look_alike(acme: Caller, name: str) -> None:
    unknown = problem(acme.enqueue("no.such.task", {}, key="k"), 422, "unknown-task")
    assert problem(acme.enqueue(name, {"tenant": "x"}, key="k"), 422, "unknown-task") == unknown
    assert rows() == 0


def test_options_reach_the_row(acme: Caller) -> None:
    acme.enqueued(
        priority=-100, run_at="2030-01-31T10:00:00+01:00", start_by="2031-01-31T09:00:00Z",
        ordering_key="order-7",
    )  # fmt: skip
    job = Job.objects.get()
    assert (job.priority, job.ordering_key, job.due) == (-100, "order-7", False)
    assert job.run_at == datetime(2030, 1, 31, 9, tzinfo=UTC)
    assert job.start_by == datetime(2031, 1, 31, 9, tzinfo=UTC)


def test_work_that_is_refused_is_429_with_whole_seconds(
    acme: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **options: Any) -> Any:
        raise Rejected("the queue is full", retry_after=7)

    monkeypatch.setattr(api, "accept", full)
    answer = acme.enqueue(CAPTURE, {"order_id": 7}, key="order-7")
    problem(answer, 429, "rejected")
    assert answer["Retry-After"] == "7"


def test_enqueuing_costs_two_statements_and_the_hint(
    acme: Caller, django_assert_num_queries: Any, settings: Any
) -> None:
    settings.TASKS_LEDGER_NOTIFY = False
    acme.enqueued()
    # In a test there is always a transaction, which adds a savepoint (2).
    with django_assert_num_queries(2 + 2):
        acme.enqueued()


@pytest.mark.django_db(transaction=True)
def test_five_hundred_racing_posts_of_one_key_are_one_job(acme: Caller) -> None:
    start = threading.Barrier(50)

    def ten_times(url: str) -> list[str]:
        start.wait()
        return [post(f"{url}/api/jobs", acme)["id"] for _ in range(10)]

    env = {"DJANGO_SETTINGS_MODULE": "tests.published_site"}
    with web("--threads", "16", env=env) as server, ThreadPoolExecutor(50) as pool:
        answers = [job_id for ids in pool.map(ten_times, [server.url] * 50) for job_id in ids]
    assert len(answers) == 500
    assert set(answers) == {str(Job.objects.get().id)}


def post(url: str, caller: Caller) -> dict[str, Any]:
    request = urllib.request.Request(
        url,
        b'{"task": "t.keyed", "payload": {"order_id": 7, "amount": "1"}}',
        {**caller.headers, "Idempotency-Key": "race", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        body: dict[str, Any] = json.load(answer)
        return body


# --- read --------------------------------------------------------------------------------


def test_a_job_shows_its_life_and_masks_what_is_sensitive(acme: Caller) -> None:
    job_id = acme.enqueued(payload={"order_id": 7, "card": "4242424242424242"})
    answer = acme.get(f"/jobs/{job_id}")
    body = answer.json()
    assert b"4242" not in answer.content
    assert body["payload"] == {"order_id": 7, "card": "••••"}
    assert {
        name: body[name]
        for name in ("task", "queue", "state", "attempts", "crashes", "priority", "waiting_for")
    } == {
        "task": CAPTURE, "queue": "default", "state": "queued", "attempts": 0, "crashes": 0,
        "priority": 0, "waiting_for": "capacity",
    }  # fmt: skip
    assert body["result"] is body["error"] is body["failure"] is body["finished_at"] is None


def test_a_payload_of_a_task_that_is_not_known_here_is_not_shown(acme: Caller) -> None:
    job_id = acme.enqueued(payload={"order_id": 7, "card": "4242"})
    Job.objects.update(task="of.another.release")
    assert acme.get(f"/jobs/{job_id}").json()["payload"] is None


def test_a_failed_job_shows_why(acme: Caller) -> None:
    job_id = acme.enqueued()
    set_state(job_id, "failed")
    Job.objects.update(error_type="Declined", error_message="no funds", error_traceback="secret")
    answer = acme.get(f"/jobs/{job_id}")
    assert answer.json()["error"] == {"type": "Declined", "message": "no funds"}
    assert answer.json()["failure"] == "error"
    assert answer.json()["dead_letter"] is True
    assert b"secret" not in answer.content


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"due": False}, "time"),
        ({"hold_reason": "paused"}, "pause"),
        ({"state": "dispatched", "dispatched_at": datetime(2030, 1, 1, tzinfo=UTC)}, "capacity"),
    ],
)
def test_a_waiting_job_says_what_it_waits_for(
    acme: Caller, change: dict[str, Any], reason: str
) -> None:
    job_id = acme.enqueued()
    Job.objects.update(**change)
    assert acme.get(f"/jobs/{job_id}").json()["waiting_for"] == reason


@pytest.mark.parametrize("job_id", ["7", "not-a-uuid", str(uuid.UUID(int=7)), "%00", "..%2f"])
def test_what_is_no_job_is_404(acme: Caller, job_id: str) -> None:
    problem(acme.get(f"/jobs/{job_id}"), 404, "not-found")
    problem(acme.post(f"/jobs/{job_id}/cancel"), 404, "not-found")
    problem(acme.post(f"/jobs/{job_id}/replay", {"reason": "x"}), 404, "not-found")


def test_another_tenants_job_does_not_exist_on_any_route(acme: Caller, globex: Caller) -> None:
    job_id = acme.enqueued()
    problem(globex.get(f"/jobs/{job_id}"), 404, "not-found")
    problem(globex.get(f"/jobs/{job_id}", prefer="wait=5"), 404, "not-found")
    problem(globex.post(f"/jobs/{job_id}/cancel"), 404, "not-found")
    set_state(job_id, "failed")
    problem(globex.post(f"/jobs/{job_id}/replay", {"reason": "x"}), 404, "not-found")
    assert globex.get("/jobs").json()["jobs"] == []
    assert Job.objects.get().state == "failed"
    assert not OperatorAction.objects.exists()


def test_pages_go_from_the_newest_to_the_oldest_without_gaps(acme: Caller, globex: Caller) -> None:
    ours = [acme.enqueued() for _ in range(5)]
    globex.enqueued()
    seen, cursor = [], ""
    while True:
        page = acme.get(f"/jobs?limit=2{cursor}").json()
        seen += [job["id"] for job in page["jobs"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert seen == ours[::-1]


def test_an_id_that_the_caller_chose_does_not_keep_a_job_on_top(acme: Caller) -> None:
    old = job_row(age_s=60, id=uuid.UUID(int=2**128 - 1), tenant="acme")
    new = acme.enqueued()
    assert [job["id"] for job in acme.get("/jobs").json()["jobs"]] == [new, str(old.id)]


def test_lists_are_filtered_and_never_counted(
    acme: Caller, django_assert_max_num_queries: Any
) -> None:
    acme.enqueued()
    wanted = acme.enqueued("published.remind")
    set_state(wanted, "failed")
    with django_assert_max_num_queries(3) as statements:
        page = acme.get("/jobs?state=failed&task=published.remind").json()
    assert [job["id"] for job in page["jobs"]] == [wanted]
    assert not any("count(" in s["sql"].lower() for s in statements.captured_queries)
    assert not any("payload" in s["sql"] for s in statements.captured_queries)
    assert acme.get("/jobs?state=failed&task=published.capture").json()["jobs"] == []


@pytest.mark.parametrize(
    ("query", "status", "path"),
    [
        ("state=finished", 422, "state"),
        ("limit=0", 422, "limit"),
        ("limit=201", 422, "limit"),
        ("limit=many", 422, "limit"),
        ("task=%00", 422, "task"),
        ("cursor=%00", 400, "cursor"),
        ("cursor=zzz", 400, "cursor"),
        ("cursor=%C3%A9", 400, "cursor"),
        ("cursor=" + "A" * 22, 400, "cursor"),
    ],
)
def test_a_bad_query_names_its_parameter(acme: Caller, query: str, status: int, path: str) -> None:
    answer = acme.get(f"/jobs?{query}")
    assert problem(answer, status, "invalid" if status == 422 else "malformed")["path"] == path


# --- waiting -----------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_a_reader_who_prefers_to_wait_is_answered_when_the_job_ends(acme: Caller) -> None:
    job_id = acme.enqueued()

    def finish() -> None:
        time.sleep(0.3)
        set_state(job_id, "succeeded")
        connections.close_all()

    finisher = threading.Thread(target=finish)
    finisher.start()
    began = time.monotonic()
    answer = acme.get(f"/jobs/{job_id}", prefer="respond-async, wait=10")
    finisher.join()
    assert answer.json()["state"] == "succeeded"
    assert answer["Preference-Applied"] == "wait=10"
    assert time.monotonic() - began < 2


def test_a_wait_is_bounded_and_changes_nothing(
    acme: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_poll, "WAIT_MAX_S", 1)
    job_id = acme.enqueued()
    answer = acme.get(f"/jobs/{job_id}", prefer="wait=3600")
    assert answer["Preference-Applied"] == "wait=1"
    assert answer.json()["state"] == "queued"


def test_a_finished_job_is_answered_at_once(acme: Caller) -> None:
    job_id = acme.enqueued()
    set_state(job_id, "cancelled")
    began = time.monotonic()
    acme.get(f"/jobs/{job_id}", prefer="wait=10")
    assert time.monotonic() - began < 1


@pytest.fixture
def all_seats_taken() -> Iterator[None]:
    for _ in range(seats.waiting_max()):
        assert seats.seats().acquire(blocking=False)
    yield
    for _ in range(seats.waiting_max()):
        seats.seats().release()


def test_beyond_the_seats_for_waiting_one_is_answered_at_once(
    acme: Caller, all_seats_taken: None
) -> None:
    job_id = acme.enqueued()
    began = time.monotonic()
    answer = acme.get(f"/jobs/{job_id}", prefer="wait=10")
    assert answer.status_code == 200
    assert "Preference-Applied" not in answer
    assert answer["Retry-After"] == "2"  # an answered wait has none
    assert time.monotonic() - began < 1


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, 0), ("", 0), ("wait=5", 5), ("respond-async, wait=5", 5), ("WAIT = 5", 5),
        ('wait="5"', 5), ("wait=5; foo", 5), ("wait=-5", 0), ("wait=1.5", 0), ("await=5", 0),
        ("wait=99999", long_poll.WAIT_MAX_S), ("wait=" + "9" * 5000, 0),
    ],
)  # fmt: skip
def test_the_wish_to_wait_is_read_from_the_header(header: str | None, seconds: int) -> None:
    assert long_poll.wished_wait_s(header) == seconds


# --- operate -----------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["queued", "dispatched"])
def test_a_waiting_job_is_cancelled_at_once(acme: Caller, state: str) -> None:
    job_id = acme.enqueued()
    set_state(job_id, state)
    answer = acme.post(f"/jobs/{job_id}/cancel", {"reason": "customer left"})
    assert answer.status_code == 202
    assert answer.json() == {"id": job_id, "state": "cancelled"}
    action = OperatorAction.objects.get()
    assert (action.action, action.reason) == ("cancel", "customer left")
    assert action.actor.startswith("client:")


def test_a_running_job_is_asked_to_stop(acme: Caller) -> None:
    job_id = acme.enqueued()
    set_state(job_id, "running")
    answer = acme.post(f"/jobs/{job_id}/cancel")
    assert (answer.status_code, answer.json()["state"]) == (202, "running")
    assert acme.get(f"/jobs/{job_id}").json()["cancel_requested_at"] is not None


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled"])
def test_a_finished_job_cannot_be_cancelled(acme: Caller, state: str) -> None:
    job_id = acme.enqueued()
    set_state(job_id, state)
    assert state in problem(acme.post(f"/jobs/{job_id}/cancel"), 409, "wrong-state")["detail"]
    assert Job.objects.get().state == state


def test_a_failed_job_is_replayed_with_its_reason(acme: Caller) -> None:
    job_id = acme.enqueued()
    set_state(job_id, "failed")
    answer = acme.post(f"/jobs/{job_id}/replay", {"reason": "the bank is back"})
    assert (answer.status_code, answer.json()) == (202, {"id": job_id, "state": "queued"})
    assert OperatorAction.objects.get().reason == "the bank is back"


@pytest.mark.parametrize("state", ["queued", "dispatched", "running", "succeeded", "cancelled"])
def test_only_a_failed_job_is_replayed(acme: Caller, state: str) -> None:
    job_id = acme.enqueued()
    set_state(job_id, state)
    problem(acme.post(f"/jobs/{job_id}/replay", {"reason": "again"}), 409, "wrong-state")
    assert Job.objects.get().state == state


@pytest.mark.parametrize("body", [{}, {"reason": ""}, {"reason": "  "}, {"reason": "x" * 501}])
def test_a_replay_needs_a_reason(acme: Caller, body: dict[str, str]) -> None:
    job_id = acme.enqueued()
    set_state(job_id, "failed")
    answer = acme.post(f"/jobs/{job_id}/replay", body)
    assert problem(answer, 422, "invalid")["path"] == "$.reason"
    assert Job.objects.get().state == "failed"


# --- tasks -------------------------------------------------------------------------------


def test_the_published_tasks_are_listed_with_the_schema_of_their_payload(acme: Caller) -> None:
    tasks = {task["name"]: task for task in acme.get("/tasks").json()}
    assert "internal.purge" not in tasks
    book = tasks["published.book"]
    schema = book.pop("payload")
    assert book == {
        "name": "published.book", "says": "Books seats.", "queue": "bulk", "needs_key": True,
        "key": None, "dedupe_window_s": None, "sensitive": ["pin"],
    }  # fmt: skip
    assert schema["required"] == ["day", "seats"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["day"] == {"type": "string", "format": "date"}
    assert schema["properties"]["seats"]["items"] == {"$ref": "#/$defs/Seat"}
    assert set(schema["$defs"]["Seat"]["properties"]) == {"row", "note"}
    assert "0000" not in str(schema)  # the default of a sensitive parameter
    assert (tasks["published.remind"]["key"], tasks["published.remind"]["needs_key"]) == (
        "remind:{order_id}", False,
    )  # fmt: skip
    assert tasks["published.click"]["dedupe_window_s"] == 60
    assert tasks["published.keep"]["payload"]["additionalProperties"] is True


def test_what_is_listed_as_without_need_of_a_key_is_accepted_without(acme: Caller) -> None:
    payloads = {"published.remind": {"order_id": 1}, "published.click": {"button": "x"}}
    needs = {task["name"]: task["needs_key"] for task in acme.get("/tasks").json()}
    for name, payload in payloads.items():
        assert not needs[name]
        assert acme.enqueue(name, payload).status_code == 202
    assert needs["published.capture"]
    problem(acme.enqueue("published.capture", {"order_id": 1}), 400, "invalid-key")


def test_staff_sees_the_tasks_that_are_not_published_too() -> None:
    listed = person("add_job", staff=True).get("/tasks").json()
    assert "internal.purge" in {task["name"] for task in listed}


# --- queues ------------------------------------------------------------------------------


def test_queues_show_what_waits_and_what_runs(acme: Caller) -> None:
    acme.enqueued()
    acme.enqueued(run_at="2090-01-01T00:00:00Z")
    set_state(acme.enqueued(), "running")
    set_state(acme.enqueued(), "dispatched")
    queues = {queue["name"]: queue for queue in acme.get("/queues").json()}
    assert {"default", "payments", "bulk", "webhooks"} <= set(queues)
    assert queues["default"].pop("oldest_age_s") >= 0
    assert queues["default"] == {
        "name": "default", "depth": 1, "scheduled": 1, "held": 0, "ordered": 0,
        "held_by_pause": 0, "in_flight": 2, "capacity": 0, "workers": 0, "paused": False,
        "pause_reason": None, "breaker": None,
    }  # fmt: skip


# --- what is wrong outside a view ---------------------------------------------------------


def test_an_unknown_address_is_a_problem(acme: Caller) -> None:
    problem(acme.get("/nothing"), 404, "not-found")
    problem(acme.post("/jobs/"), 404, "not-found")
    problem(Client(enforce_csrf_checks=True).post("/api/nothing"), 404, "not-found")


def test_a_wrong_method_is_a_problem_that_names_the_right_ones(acme: Caller) -> None:
    answer = acme.http.delete("/api/jobs", headers=acme.headers)
    problem(answer, 405, "method-not-allowed")
    assert set(answer["Allow"].split(", ")) == {"GET", "POST"}


def test_a_fault_of_ours_is_a_problem_and_is_reported(
    acme: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **options: Any) -> Any:
        raise RuntimeError("secret")

    monkeypatch.setattr(api, "accept", broken)
    body = {"task": CAPTURE, "payload": {"order_id": 7}}
    with pytest.raises(RuntimeError):  # the test client listens to Django's signal
        acme.post("/jobs", body, idempotency_key="k")
    acme.http.raise_request_exception = False
    answer = acme.post("/jobs", body, idempotency_key="k")
    problem(answer, 500, "internal")
    assert b"secret" not in answer.content


@pytest.fixture
def database_is_down(acme: Caller) -> Iterator[None]:
    """A port where nobody listens. ``acme`` exists before."""
    connection.close()
    port, connection.settings_dict["PORT"] = connection.settings_dict["PORT"], str(free_port())
    yield
    connection.settings_dict["PORT"] = port


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("database_is_down")
@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/api/jobs"), ("GET", "/api/jobs"), ("GET", "/api/queues"), ("GET", "/api/jobs/7")],
)
def test_without_a_database_the_answer_is_503_and_comes_at_once(
    acme: Caller, method: str, path: str
) -> None:
    began = time.monotonic()
    answer = acme.http.generic(
        method, path, b'{"task": "published.capture", "payload": {"order_id": 7}}',
        content_type="application/json",
        headers={**acme.headers, **named({"idempotency_key": "k"})},
    )  # fmt: skip
    problem(answer, 503, "unavailable")
    assert int(answer["Retry-After"]) >= 1
    assert time.monotonic() - began < 1


@pytest.mark.django_db(transaction=True)
def test_a_session_without_a_database_is_503_too() -> None:
    caller = person("view_job")
    connection.close()
    port, connection.settings_dict["PORT"] = connection.settings_dict["PORT"], str(free_port())
    try:
        problem(caller.get("/jobs"), 503, "unavailable")
    finally:
        connection.settings_dict["PORT"] = port


# --- OpenAPI -----------------------------------------------------------------------------


def test_the_schema_is_open_and_describes_every_call(client: Client) -> None:
    schema = client.get("/api/openapi.json").json()
    assert {
        "/api/jobs", "/api/jobs/cancel", "/api/jobs/{job_id}", "/api/jobs/{job_id}/cancel",
        "/api/jobs/{job_id}/replay", "/api/jobs/{job_id}/outputs", "/api/queues", "/api/tasks",
        "/api/workers", "/api/workers/{name}", "/api/limits", "/api/limits/{name}/pause",
        "/api/pauses",
    } == set(schema["paths"])  # fmt: skip
    enqueue = schema["paths"]["/api/jobs"]["post"]
    assert "Idempotency-Key" in [p["name"] for p in enqueue["parameters"]]
    assert {"202", "200", "400", "401", "403", "413", "415", "422", "429", "503"} == set(
        enqueue["responses"]
    )
    assert client.get("/api/docs").status_code == 200
