"""``manage.py check --deploy``: each mistake has an id, a sentence and a hint."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import redis
from celery import current_app
from django.conf import settings as django_settings
from django.core import checks

from devtools.child import ROOT
from devtools.servers import Redis
from devtools.supervisor import Supervisor
from project import checks as project_checks
from project import http
from tasks import deploy_checks
from tasks.environment import GUARD, set_owner
from tasks.task import LedgerTask
from tasks.topology import Broker, Downstream, Queue, Topology
from tests.processes import environment

pytestmark = pytest.mark.django_db

PRODUCTION = {
    "PRODUCTION": True,
    "SECRET_KEY": "a-secret-that-nobody-else-has-seen-before",
    "DEBUG": False,
    "ALLOWED_HOSTS": ["shop.example.com"],
    "RELEASE": "2026.48",
}


def messages() -> dict[str | None, checks.CheckMessage]:
    found = checks.run_checks(include_deployment_checks=True)
    return {message.id: message for message in found}


@pytest.fixture
def production(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """As it should be; each test spoils one thing."""
    for name, value in PRODUCTION.items():
        setattr(settings, name, value)
    password("long and secret")(settings, monkeypatch)
    monkeypatch.setenv("BROKER_PREFIX", "production:")
    for name in ("FLOWER_BASIC_AUTH", "FLOWER_UNAUTHENTICATED_API", "STOP_GRACE_S"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(deploy_checks, "FIRST_PROCESS", Path("/proc/none"))
    return settings


Spoil = Callable[[Any, pytest.MonkeyPatch], object]


def conf(**values: Any) -> Spoil:
    def spoil(_: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in values.items():
            monkeypatch.setitem(current_app.conf, name, value)

    return spoil


def setting(**values: Any) -> Spoil:
    return lambda settings, _: [setattr(settings, name, value) for name, value in values.items()]


def env(**values: str) -> Spoil:
    return lambda _, monkeypatch: [monkeypatch.setenv(n, value) for n, value in values.items()]


def password(value: str) -> Spoil:
    """As the check sees it: the tests' own connections keep theirs."""
    given = {"OPTIONS": {}, "HOST": "db", "PASSWORD": value}
    return lambda _, monkeypatch: monkeypatch.setattr(project_checks, "database", lambda: given)


def first_process(name: str) -> Spoil:
    def spoil(_: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        file = SimpleNamespace(read_text=lambda: f"{name}\n")
        monkeypatch.setattr(deploy_checks, "FIRST_PROCESS", file)

    return spoil


def topology(**numbers: Any) -> Spoil:
    return setting(TASKS_TOPOLOGY=Topology.of([Queue("default", **numbers)]))


# What somebody did, the id, and a part of the sentence.
MISTAKES: dict[str, tuple[Spoil, str, str]] = {
    "a second owner of retries": (
        conf(task_retry_on_worker_lost=True), "tasks.E101", "second owner of retries",
    ),
    "a broker that sends a killer for ever": (
        conf(task_reject_on_worker_lost=True), "tasks.E102", "for ever (every task",
    ),
    "acked before it runs": (conf(task_acks_late=False), "tasks.E104", "task_acks_late is False"),
    "jobs hoarded by a worker": (
        conf(worker_prefetch_multiplier=4), "tasks.E104", "worker_prefetch_multiplier 4",
    ),
    "a visibility timeout below the longest run": (
        conf(broker_transport_options={"visibility_timeout": 60}), "tasks.E105",
        "is 60 s, and the longest time limit with its stop grace 330 s",
    ),
    "a grace shorter than the drain": (
        env(STOP_GRACE_S="10"), "tasks.E106", "STOP_GRACE_S=10, and a worker needs 30 s",
    ),
    "a shell as process 1": (first_process("sh"), "tasks.E107", "Process 1 is a shell (sh)"),
    "numbers that clash": (
        topology(stop_grace=5), "topology.E001", "the stop grace of 5 s ends before the drain",
    ),
    "a broker whose timeout was typed": (
        setting(
            TASKS_TOPOLOGY=Topology.of([Queue("q")], broker=Broker(visibility_timeout=60))
        ), "topology.E020", "visibility timeout of 60 s is not above",
    ),
    "a default secret key": (
        setting(SECRET_KEY="only-for-development"), "project.E001", "SECRET_KEY is a default",
    ),
    "an example's secret key": (
        setting(SECRET_KEY="django-insecure-" + "x" * 50), "project.E001", "SECRET_KEY",
    ),
    "a default database password": (password("postgres"), "project.E002", "is a default"),
    "no database password": (password(""), "project.E002", "there is none"),
    "debug": (setting(DEBUG=True), "project.E003", "DEBUG is on"),
    "every host": (setting(ALLOWED_HOSTS=["*"]), "project.E004", "ALLOWED_HOSTS is *"),
    "only this machine": (
        setting(ALLOWED_HOSTS=["localhost"]), "project.E004", "names no public host",
    ),
    "no prefix": (env(BROKER_PREFIX=""), "project.E005", "BROKER_PREFIX is empty"),
    "an open Flower": (
        env(FLOWER_BASIC_AUTH="flower:flower"), "project.E006", "Flower is open",
    ),
    "a Flower of its own configuration": (
        env(FLOWER_CONF="flowerconfig.py"), "project.E006", "Flower is open",
    ),
    "a Flower with an open API": (
        env(FLOWER_UNAUTHENTICATED_API="true"), "project.E006", "an API without one",
    ),
    "no release": (setting(RELEASE=""), "project.E008", "RELEASE is not set"),
    "no production": (setting(PRODUCTION=False), "project.W001", "are unchecked"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_refused_with_its_id_a_sentence_and_a_hint(
    mistake: str, production: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil, code, sentence = MISTAKES[mistake]
    assert code not in messages()
    spoil(production, monkeypatch)
    message = messages()[code]
    assert sentence in message.msg
    assert message.hint
    assert message.is_serious() == (".E" in code)


@pytest.mark.usefixtures("production")
def test_a_deployment_as_it_should_be_has_no_error() -> None:
    assert [m for m in messages().values() if m.is_serious()] == []


def test_a_first_look_is_refused_nothing() -> None:
    """Development secrets are no mistake there; only a warning says that nobody looked."""
    found = messages()
    assert "project.W001" in found
    assert not [code for code in found if code and code.startswith("project.E")]


# --- one owner of retries -----------------------------------------------------------------


@pytest.fixture
def declare() -> Iterator[Callable[..., Any]]:
    names: list[str] = []

    def declared(function: Callable[..., Any], **options: Any) -> Any:
        name = f"checked.{function.__name__}"
        names.append(name)
        current_app.task(function, name=name, shared=False, base=LedgerTask, **options)
        return current_app.tasks[name]

    yield declared
    for name in names:
        current_app.tasks.pop(name, None)


def test_a_task_that_the_broker_sends_again_is_named(declare: Callable[..., Any]) -> None:
    def deadly() -> None: ...

    declare(deadly).reject_on_worker_lost = True
    assert "checked.deadly" in messages()["tasks.E102"].msg


def test_a_client_that_retries_is_named_with_its_number() -> None:
    with httpx.Client(transport=httpx.HTTPTransport(retries=4)):
        assert "httpx.HTTPTransport retries by itself" in messages()["tasks.W101"].msg
        assert "up to 5 times" in messages()["tasks.W101"].msg


TENACITY = """
import functools
def retry(function):
    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        return function(*args, **kwargs)
    return wrapped
"""


def test_a_body_that_a_library_retries_is_named(
    declare: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tenacity").mkdir()
    (tmp_path / "tenacity" / "__init__.py").write_text(TENACITY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tenacity", raising=False)
    tenacity = importlib.import_module("tenacity")

    def pay() -> None: ...

    declare(tenacity.retry(pay))
    message = messages()["tasks.W102"]
    assert (message.obj, message.is_serious()) == ("checked.pay", False)
    assert "wrapped by tenacity" in message.msg
    sys.modules.pop("tenacity")


def test_the_projects_own_client_may_not_retry() -> None:
    with http.client(httpx.Timeout(1)) as client:
        assert "project.E007" not in messages()
        client._transport = httpx.HTTPTransport(retries=2)
        assert "second owner of retries" in messages()["project.E007"].msg


def test_retries_that_outlast_the_downstreams_memory_are_refused(
    declare: Callable[..., Any], settings: Any
) -> None:
    def pay() -> None: ...

    bank = Downstream("bank", max_concurrency=1, remembers_keys=timedelta(hours=1))
    settings.TASKS_TOPOLOGY = Topology.of([Queue("q", downstream=bank)])
    task = declare(pay, queue="q", retry_backoff=60, retry_backoff_max=600, max_retries=5)
    assert deploy_checks.retry_window_s(task) == 60 + 120 + 240 + 480 + 600
    assert "tasks.E103" not in messages()
    task.max_retries = 12
    assert "for 1:35:00, and bank knows an idempotency key for 1:00:00" in (
        messages()["tasks.E103"].msg
    )
    task.max_retries = None
    assert "go on for ever" in messages()["tasks.E103"].msg


# --- the servers --------------------------------------------------------------------------


def test_a_broker_that_evicts_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Supervisor() as supervisor:
        server = Redis(tmp_path / "redis")
        supervisor.add(server)
        monkeypatch.setitem(current_app.conf, "broker_url", server.url)
        with redis.Redis.from_url(server.url) as broker:
            assert "tasks.E108" not in messages()
            broker.config_set("maxmemory-policy", "allkeys-lru")
            assert "its maxmemory-policy is allkeys-lru" in messages()["tasks.E108"].msg


def test_a_broker_that_does_not_answer_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(current_app.conf, "broker_url", "redis://127.0.0.1:9/0")
    found = messages()
    assert not found["tasks.W108"].is_serious()
    assert "tasks.E108" not in found


@pytest.mark.django_db(transaction=True)
def test_a_ledger_of_another_environment_is_refused() -> None:
    set_owner("staging")
    GUARD.satisfied = False
    try:
        assert "belongs to the environment 'staging'" in messages()["tasks.E109"].msg
    finally:
        GUARD.satisfied = True
        set_owner(django_settings.TASKS_ENVIRONMENT)


@pytest.mark.parametrize("name", ["production", "staging"])
def test_the_command_ends_with_an_error_in_production_without_secrets(name: str) -> None:
    given = environment({"ENVIRONMENT": name, "SECRET_KEY": "short", "BROKER_PREFIX": ""})
    done = subprocess.run(
        [sys.executable, "manage.py", "check", "--deploy"],
        cwd=ROOT, env=given, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    for code in ("project.E001", "project.E004", "project.E005"):
        assert f"({code})" in done.stderr
