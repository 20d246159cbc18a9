"""Flower: closed, for looking only, and its revoke button cancels the job."""

from __future__ import annotations

import base64
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from devtools.ports import LOOPBACK, free_port
from tasks.models import Job, OperatorAction
from tests.habits import habit
from tests.processes import Process, environment, relay, running, wait_until, worker
from tests.sample_shop import tasks as shop

USER = "ops:secret"


class Flower:
    def __init__(self, url: str) -> None:
        self.url = url

    def status(self, path: str, user: str | None = None, method: str = "GET") -> int:
        return self.ask(path, user, method)[0]

    def ask(self, path: str, user: str | None = None, method: str = "GET") -> tuple[int, str]:
        request = urllib.request.Request(self.url + path, method=method)
        if user:
            request.add_header("Authorization", f"Basic {base64.b64encode(user.encode()).decode()}")
        if method == "POST":
            request.data = b""
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as answer:
            return answer.code, answer.read().decode()
        except OSError:
            return 0, ""

    def task(self, task_id: str) -> dict[str, Any] | None:
        status, body = self.ask("/api/tasks", USER)
        found: dict[str, Any] = json.loads(body) if status == 200 else {}
        return found.get(task_id)


def flower_process(port: int, env: Mapping[str, str]) -> Process:
    argv = [sys.executable, "-m", "celery", "-A", "project", "flower"]
    options = [f"--address={LOOPBACK}", f"--port={port}"]
    return Process("flower", [*argv, *options], environment(env))


@contextmanager
def flower(**env: str) -> Iterator[Flower]:
    port = free_port()
    site = Flower(f"http://{LOOPBACK}:{port}")
    with running(flower_process(port, {"FLOWER_BASIC_AUTH": USER, **env})):
        wait_until(lambda: site.status("/healthcheck") == 200, within_s=30, what="Flower answers")
        yield site


@pytest.mark.parametrize("auth", ["", "user-without-password", "user:", "a:b,c"])
def test_flower_refuses_to_start_open(auth: str) -> None:
    with running(flower_process(free_port(), {"FLOWER_BASIC_AUTH": auth})) as process:
        assert process.wait(within_s=30) != 0
    assert "FLOWER_BASIC_AUTH=user:password" in process.log


@pytest.mark.django_db(transaction=True)
def test_flower_shows_the_job_to_those_with_the_password_and_changes_nothing() -> None:
    pages = ["/", "/tasks", "/metrics", "/api/tasks", "/api/workers", "/broker"]
    with flower() as site, worker("default", "-c", "1", "-E"), relay():
        for page in pages:
            assert site.status(page) == 401, page
            assert site.status(page, "ops:wrong") == 401, page
        assert {site.status(page, USER) for page in ("/", "/metrics", "/api/tasks")} == {200}

        result = shop.add.delay(1, 2)
        task = wait_until(lambda: site.task(result.id), within_s=30, what="Flower has seen it")
        assert (task["uuid"], task["name"]) == (result.id, "tests.sample_shop.tasks.add")
        assert site.status(f"/task/{result.id}", USER) == 200

        later = shop.add.apply_async((1, 2), countdown=3600)
        assert site.status(f"/api/task/revoke/{later.id}", USER, "POST") == 403
    assert Job.objects.get(id=later.id).state == "queued"


@habit("Flower's revoke")
@pytest.mark.django_db(transaction=True)
def test_revoking_in_flower_cancels_the_job_also_with_no_worker_up(tmp_path: Path) -> None:
    (tmp_path / "auth").write_text(f"{USER}\n")
    env = {"FLOWER_READ_ONLY": "false", "FLOWER_BASIC_AUTH_FILE": str(tmp_path / "auth")}
    result = shop.add.delay(1, 2)
    with flower(**env, FLOWER_BASIC_AUTH="") as site:
        assert site.status(f"/api/task/revoke/{result.id}", None, "POST") == 401
        assert site.status(f"/api/task/revoke/{result.id}", USER, "POST") == 200
        assert result.status == "REVOKED"
        rate = f"/api/task/rate-limit/{shop.add.name}?ratelimit=1/s"
        assert site.status(rate, USER, "POST") >= 400
    assert OperatorAction.objects.get().actor == "celery revoke"
