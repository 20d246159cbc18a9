"""Callers of the HTTP interface, as tests need them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from uuid import UUID

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client

from tasks.clients import Scope, create_client
from tasks.models import Job

NUMBERS = count()


@dataclass(frozen=True)
class Caller:
    """An HTTP client with its credentials."""

    headers: Mapping[str, str]
    http: Client = field(default_factory=Client)

    def get(self, path: str, **headers: str) -> Any:
        return self.http.get(f"/api{path}", headers={**self.headers, **named(headers)})

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        return self.post_raw(path, b"" if body is None else json.dumps(body).encode(), **headers)

    def post_raw(self, path: str, body: bytes, **headers: str) -> Any:
        return self.http.post(
            f"/api{path}",
            body,
            content_type=headers.pop("content_type", "application/json"),
            headers={**self.headers, **named(headers)},
        )

    def delete(self, path: str) -> Any:
        return self.http.delete(f"/api{path}", headers=dict(self.headers))

    def enqueue(self, task: str, payload: Any, *, key: str | None = None, **fields: Any) -> Any:
        keys = {} if key is None else {"idempotency_key": key}
        return self.post("/jobs", {"task": task, "payload": payload, **fields}, **keys)

    def enqueued(self, task: str = "published.capture", **fields: Any) -> str:
        """The id of a new job."""
        payload = fields.pop("payload", {"order_id": 1})
        answer = self.enqueue(task, payload, key=f"key-{next(NUMBERS)}", **fields)
        assert answer.status_code == 202, answer.content
        return str(answer.json()["id"])


def named(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


def api_client(tenant: str = "acme", scopes: str = "enqueue,read,operate") -> Caller:
    granted = [Scope(scope) for scope in scopes.split(",") if scope]
    token = create_client(f"client-{next(NUMBERS)}", tenant=tenant, scopes=granted)
    return Caller({"Authorization": f"Bearer {token}"})


def person(*permissions: str, staff: bool = False, csrf: bool = False) -> Caller:
    """Somebody logged in. ``csrf``: checked as for a browser."""
    user: Any = get_user_model().objects.create_user(f"user-{next(NUMBERS)}", is_staff=staff)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    http = Client(enforce_csrf_checks=csrf)
    http.force_login(user)
    return Caller({}, http)


def rows() -> int:
    return Job.objects.count()


def set_state(job_id: str, state: str) -> None:
    """Put a job into a state, past the machine, as a run would have left it."""
    columns = {
        "queued": "",
        "dispatched": ", dispatched_at = now()",
        "running": ", lease_expires_at = now() + interval '15 seconds'",
        "succeeded": ", finished_at = now()",
        "cancelled": ", finished_at = now()",
        "failed": ", finished_at = now(), failure = 'error', dead_letter = true",
    }[state]
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE tasks_job SET state = %s{columns} WHERE id = %s", [state, UUID(job_id)]
        )
