"""Who may call: tokens, sessions, scopes, and the command that hands out tokens."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from devtools.child import ROOT
from tasks.models import ApiClient, Job
from tests import published_tasks  # noqa: F401  (registers them)
from tests.callers import Caller, api_client, person, rows, set_state
from tests.processes import environment

pytestmark = pytest.mark.django_db

CAPTURE = "published.capture"
ROUTES = [
    ("GET", "/api/jobs"),
    ("POST", "/api/jobs"),
    ("GET", "/api/jobs/7"),
    ("POST", "/api/jobs/7/cancel"),
    ("POST", "/api/jobs/7/replay"),
    ("GET", "/api/tasks"),
    ("GET", "/api/queues"),
    ("GET", "/api/limits"),
    ("GET", "/api/pauses"),
    ("POST", "/api/pauses"),
    ("DELETE", "/api/pauses?kind=queue&name=default"),
]


def refused(answer: Any, status: int, name: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.content
    assert answer["Content-Type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["type"] == f"/problems/{name}"
    return body


# --- tokens ------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("header", [None, "", "Basic YTpi", "Bearer", "Bearer ", "Bearer cel_x"])
def test_without_valid_credentials_every_route_is_401(
    method: str, path: str, header: str | None
) -> None:
    headers = {} if header is None else {"Authorization": header}
    answer = Client(enforce_csrf_checks=True).generic(method, path, b"{}", headers=headers)
    refused(answer, 401, "unauthenticated")
    assert answer["WWW-Authenticate"].startswith("Bearer")


def test_the_token_is_kept_only_as_its_hash() -> None:
    token = api_client().headers["Authorization"].removeprefix("Bearer ")
    assert token.startswith("cel_")
    assert len(token) >= 4 + 43
    assert ApiClient.objects.get().token_hash == hashlib.sha256(token.encode()).hexdigest()


def test_the_hash_is_no_token() -> None:
    api_client()
    stolen = Caller({"Authorization": f"Bearer {ApiClient.objects.get().token_hash}"})
    refused(stolen.get("/jobs"), 401, "unauthenticated")


def test_a_revoked_token_is_refused_at_once() -> None:
    caller = api_client()
    assert caller.get("/jobs").status_code == 200
    call_command("api_client", ApiClient.objects.get().name, "--revoke", stderr=StringIO())
    refused(caller.get("/jobs"), 401, "unauthenticated")


def test_a_wrong_token_is_refused_whatever_session_comes_with_it() -> None:
    caller = person("view_job")
    refused(caller.get("/jobs", authorization="Bearer cel_wrong"), 401, "unauthenticated")


# --- scopes ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scopes", "allowed"),
    [
        ("", set()),
        ("enqueue", {"enqueue", "cancel", "tasks"}),
        ("read", {"list", "read", "queues"}),
        ("operate", {"cancel", "replay"}),
    ],
)
def test_a_scope_allows_its_calls_and_no_others(scopes: str, allowed: set[str]) -> None:
    job_id = api_client().enqueued()
    caller = api_client(scopes=scopes)
    answers = {
        "enqueue": caller.enqueue(CAPTURE, {"order_id": 7}, key="k"),
        "list": caller.get("/jobs"),
        "read": caller.get(f"/jobs/{job_id}"),
        "queues": caller.get("/queues"),
        "tasks": caller.get("/tasks"),
        "cancel": caller.post(f"/jobs/{job_id}/cancel"),
        "replay": caller.post(f"/jobs/{job_id}/replay", {"reason": "x"}),
    }
    assert {name for name, answer in answers.items() if answer.status_code != 403} == allowed
    for name in set(answers) - allowed:
        refused(answers[name], 403, "forbidden")


def test_a_missing_scope_is_named() -> None:
    body = refused(api_client(scopes="read").post("/jobs/7/cancel"), 403, "forbidden")
    assert body["scopes"] == ["enqueue", "operate"]
    assert "enqueue or operate" in body["detail"]


# --- sessions ----------------------------------------------------------------------------


def test_a_session_without_permissions_may_nothing() -> None:
    caller = person()
    refused(caller.get("/jobs"), 403, "forbidden")
    refused(caller.enqueue(CAPTURE, {"order_id": 7}, key="k"), 403, "forbidden")


def test_a_session_acts_for_no_tenant_and_sees_only_its_jobs() -> None:
    theirs = api_client("acme").enqueued()
    caller = person("add_job", "view_job")
    ours = caller.enqueued()
    assert Job.objects.get(pk=ours).tenant == ""
    assert [job["id"] for job in caller.get("/jobs").json()["jobs"]] == [ours]
    refused(caller.get(f"/jobs/{theirs}"), 404, "not-found")


def test_an_operator_sees_and_operates_all_tenants() -> None:
    job_id = api_client("acme").enqueued()
    set_state(job_id, "failed")
    caller = person("view_job", "operate_job")
    assert caller.get(f"/jobs/{job_id}").status_code == 200
    assert [job["id"] for job in caller.get("/jobs").json()["jobs"]] == [job_id]
    assert caller.post(f"/jobs/{job_id}/replay", {"reason": "x"}).status_code == 202
    assert Job.objects.get().actions.get().actor.startswith("user:")


def test_staff_may_enqueue_what_is_not_published() -> None:
    visitor, staff = person("add_job"), person("add_job", staff=True)
    refused(visitor.enqueue("internal.purge", {"tenant": "x"}, key="k"), 422, "unknown-task")
    assert staff.enqueue("internal.purge", {"tenant": "x"}, key="k").status_code == 202


@pytest.mark.parametrize("path", ["/jobs", "/jobs/7/cancel", "/jobs/7/replay"])
def test_a_session_without_the_csrf_token_changes_nothing(path: str) -> None:
    caller = person("add_job", "view_job", "operate_job", csrf=True)
    body = refused(caller.post(path, {}, idempotency_key="k"), 403, "forbidden")
    assert "CSRF" in body["detail"]
    assert caller.get("/jobs").status_code == 200
    assert rows() == 0


def test_a_session_with_the_csrf_token_may_enqueue() -> None:
    caller = person("add_job", csrf=True)
    token = "a" * 32
    caller.http.cookies["csrftoken"] = token
    body = {"task": CAPTURE, "payload": {"order_id": 7}}
    answer = caller.post("/jobs", body, idempotency_key="k", x_csrftoken=token)
    assert answer.status_code == 202, answer.content


def test_a_token_needs_no_csrf_token() -> None:
    caller = api_client()
    caller.http.handler.enforce_csrf_checks = True
    caller.enqueued()


# --- manage.py api_client ------------------------------------------------------------------


def command(*arguments: str) -> str:
    """What it writes to stdout."""
    out = StringIO()
    call_command("api_client", *arguments, stdout=out, stderr=StringIO())
    return out.getvalue()


def may(token: str) -> int:
    status: int = Caller({"Authorization": f"Bearer {token.strip()}"}).get("/jobs").status_code
    return status


def test_the_command_prints_a_working_token_alone() -> None:
    printed = command("shop", "--tenant", "acme", "--scopes", "enqueue,read")
    assert printed.count("\n") == 1
    assert may(printed) == 200
    client = ApiClient.objects.get()
    assert (client.name, client.tenant) == ("shop", "acme")
    assert (client.may_enqueue, client.may_read, client.may_operate) == (True, True, False)


def test_rotating_ends_the_old_token() -> None:
    old = command("shop", "--tenant", "acme")
    new = command("shop", "--rotate")
    assert (may(old), may(new)) == (401, 200)


def test_revoking_ends_the_token() -> None:
    token = command("shop", "--tenant", "acme")
    assert command("shop", "--revoke") == ""
    assert may(token) == 401
    with pytest.raises(CommandError, match="not revoked"):
        command("shop", "--rotate")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["shop"], "--tenant"),
        (["shop", "--tenant", "acme", "--scopes", "enqueue,admin"], "'admin'.*enqueue, read"),
        (["shop", "--tenant", "acme", "--scopes", ""], "Unknown scope ''"),
        (["old", "--tenant", "acme"], "--rotate"),
        (["shop", "--rotate"], "no API client 'shop'"),
        (["shop", "--revoke"], "no API client 'shop'"),
        (["x" * 101, "--tenant", "acme"], "100"),
        (["shop", "--tenant", "a\nb"], "printable"),
    ],
)
def test_the_command_says_what_is_wrong(arguments: list[str], message: str) -> None:
    command("old", "--tenant", "acme")
    with pytest.raises(CommandError, match=message):
        command(*arguments)
    assert ApiClient.objects.count() == 1


def test_a_mistake_on_the_command_line_is_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "manage.py", "api_client", "shop", "--tenant", "a", "--scopes", "reed"],
        cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == (
        "CommandError: Unknown scope 'reed'. There are enqueue, read, operate."
    )
