"""The snippets of the README run as written, in a fresh app, and its linter has no complaint."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.processes import database_url

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()

SETTINGS = """
from project.settings import *
INSTALLED_APPS += ["shop"]
ROOT_URLCONF = "readme_urls"
STATIC_ROOT = None
"""
# What a reader would see who tries the rest of it.
MORE = """
import json
from django.test import TestCase, override_settings
from tasks.clients import Scope, create_client
from tasks.models import Job
from tasks.topology import Queue, Topology

FORM = {"amount_cents": "950", "card": "4242", "key": "form-1"}


class ReadmeTest(TestCase):
    def test_the_call(self):
        source, names = open(%(call)r).read(), {}
        exec(source, names)
        self.assertTrue(names["done"].created)
        again = {}
        exec(source, again)
        self.assertEqual(again["done"].job_id, names["done"].job_id)
        self.assertFalse(again["done"].created)

    def test_a_double_click_is_one_order(self):
        first, second = self.client.post("/pay/7", FORM), self.client.post("/pay/7", FORM)
        self.assertEqual((first.status_code, first.content), (202, second.content))
        job = Job.objects.get()
        self.assertEqual(self.client.get(f"/paid/{job.id}").json(), {"state": "queued"})

    @override_settings(TASKS_TOPOLOGY=Topology.of([Queue("payments", max_waiting=1)]))
    def test_a_full_queue(self):
        self.assertEqual(self.client.post("/pay/7", FORM).status_code, 202)
        refused = self.client.post("/pay/8", {**FORM, "key": "form-2"})
        self.assertEqual((refused.status_code, refused.json()["reason"]), (429, "queue full"))
        caught = self.client.post("/ask/8", {**FORM, "key": "form-2"})
        self.assertEqual((caught.status_code, caught["Retry-After"]), (503, refused["Retry-After"]))

    def test_a_key_of_another_order(self):
        self.client.post("/pay/7", FORM)
        refused = self.client.post("/pay/8", FORM)
        self.assertEqual((refused.status_code, refused.json()["fields"]), (422, ["order_id"]))

    def test_the_call_over_http(self):
        token = create_client("shop", tenant="acme", scopes=list(Scope))
        headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": "order-7"}
        body = json.loads(%(body)r)
        tasks = {t["name"]: t for t in self.client.get("/api/tasks", headers=headers).json()}
        taken = tasks[body["task"]]["payload"]["properties"]
        self.assertEqual(set(taken), set(body["payload"]))
        as_json = "application/json"
        answer = self.client.post("/api/jobs", body, content_type=as_json, headers=headers)
        self.assertEqual(answer.status_code, 202, answer.content)
        self.assertEqual(set(answer.json()), set(%(answered)r))
"""


ANYWHERE = "anywhere, inside or outside a transaction"


def snippets() -> dict[str, str]:
    """By their first line, which says where a snippet belongs."""
    blocks = re.findall(r"```python\n# ([^\n]+)\n(.+?)```", README, re.DOTALL)
    return {where: f"# {where}\n{code}" for where, code in blocks}


def test_every_python_snippet_says_where_it_belongs() -> None:
    assert README.count("```python") == len(snippets())
    assert set(snippets()) == {
        "shop/tasks.py", "shop/views.py", "shop/urls.py", "shop/tests.py", ANYWHERE,
    }  # fmt: skip


@pytest.mark.timeout(180)
@pytest.mark.django_db(transaction=True)
def test_the_snippets_run_in_a_fresh_app(tmp_path: Path) -> None:
    (tmp_path / "readme_settings.py").write_text(SETTINGS)
    (tmp_path / "readme_urls.py").write_text(urls())
    app = tmp_path / "shop"
    app.mkdir()
    env = {**os.environ, "DATABASE_URL": database_url()}
    manage({**env, "DJANGO_SETTINGS_MODULE": "project.settings"}, "startapp", "shop", str(app))
    for where, code in snippets().items():
        if where.startswith("shop/"):
            (tmp_path / where).write_text(code)
    (tmp_path / "call.py").write_text(snippets()[ANYWHERE])
    more = MORE % {"call": str(tmp_path / "call.py"), **over_http()}
    env |= {"PYTHONPATH": str(tmp_path), "DJANGO_SETTINGS_MODULE": "readme_settings"}
    assert complaints(tmp_path) == ""
    (app / "test_more.py").write_text(more)
    said = manage(env, "test", "shop", "--no-input")
    assert "Ran 6 tests" in said, said


def complaints(checkout: Path) -> str:
    """Of the linter about the app, as if it stood beside the others."""
    config = ("--config", str(ROOT / "pyproject.toml"), "--config", f"src = ['{ROOT}', '.']")
    return subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--quiet", *config, "shop"],
        cwd=checkout, capture_output=True, text=True, timeout=60, check=False,
    ).stdout  # fmt: skip


def urls() -> str:
    """Those of the project, with the line that the README adds."""
    [line] = re.findall(r"line in the list of `project/urls.py`: `(.+)`", README)
    ours = (ROOT / "project" / "urls.py").read_text()
    return ours.replace("urlpatterns = [\n", f"urlpatterns = [\n    {line}\n")


def over_http() -> dict[str, object]:
    """The body that curl sends, and the names in the answer."""
    sent = re.search(r"-d '(.+)' \\\n.+\n(\{.+\})\n", README)
    assert sent is not None
    return {"body": sent[1], "answered": sorted(json.loads(sent[2]))}


def manage(env: Mapping[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT, env=dict(env), capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
