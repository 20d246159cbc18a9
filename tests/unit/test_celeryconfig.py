"""Celery's settings, read as Celery reads them."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery.app.defaults import SETTING_KEYS

from config.topology import TOPOLOGY as SHIPPED
from tasks import worker_options
from tasks.topology import Downstream, Queue
from tests.sample_topology import TOPOLOGY

ROOT = Path(__file__).resolve().parents[2]


def settings(monkeypatch: pytest.MonkeyPatch, **env: str) -> dict[str, Any]:
    for name in ("BROKER_URL", "BROKER_URL_FILE", "BROKER_PREFIX", "CELERY_BROKER_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    read = runpy.run_path(str(ROOT / "config" / "celeryconfig.py"))
    return {name: read[name] for name in read if name[0].islower() and name not in IMPORTED}


IMPORTED = {"os"}


def test_every_name_is_a_setting_of_celery(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(settings(monkeypatch)) <= SETTING_KEYS


def test_it_needs_no_django() -> None:
    # kombu itself looks whether there is a django; nobody may read its settings.
    program = "import config.celeryconfig, sys; sys.exit('django.conf' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=30, check=True)


def test_the_broker_address_may_lie_in_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    secret = tmp_path / "broker"
    secret.write_text("redis://:secret@broker/1\n")
    read = settings(monkeypatch, BROKER_URL_FILE=str(secret), BROKER_URL="redis://other")
    assert read["broker_url"] == "redis://:secret@broker/1"


def test_the_application_is_found_without_any_variable() -> None:
    """As `celery -A project` in a container: nothing reads a setting while it is imported."""
    env = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    subprocess.run(
        [sys.executable, "-c", "import project.celery"], cwd=ROOT, env=env, timeout=30, check=True
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("redis://a/0", "redis://a/0"),
        ("rediss://a/0", "rediss://a/0?ssl_cert_reqs=required"),
        ("rediss://a/0?x=1", "rediss://a/0?x=1&ssl_cert_reqs=required"),
        ("rediss://a/0?ssl_cert_reqs=none", "rediss://a/0?ssl_cert_reqs=none"),
        ("rediss://a;rediss://b", "rediss://a?ssl_cert_reqs=required;rediss://b?ssl_cert_reqs=required"),
        ("amqps://a/v", "amqps://a/v"),
    ],
)  # fmt: skip
def test_tls_to_redis_checks_the_certificate_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, given: str, expected: str
) -> None:
    assert settings(monkeypatch, BROKER_URL=given)["broker_url"] == expected


def test_the_command_line_of_celery_does_not_bypass_the_certificate_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It copies BROKER_URL to a variable that wins over every setting."""
    read = settings(monkeypatch, BROKER_URL="rediss://a/0", CELERY_BROKER_URL="rediss://a/0")
    assert read["broker_url"] == os.environ["CELERY_BROKER_URL"]
    assert read["broker_url"] == "rediss://a/0?ssl_cert_reqs=required"


def test_a_broker_given_with_b_wins_and_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    read = settings(monkeypatch, BROKER_URL="redis://a/0", CELERY_BROKER_URL="rediss://b/0")
    assert read["broker_url"] == os.environ["CELERY_BROKER_URL"]
    assert read["broker_url"] == "rediss://b/0?ssl_cert_reqs=required"


def test_the_file_wins_also_in_a_worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "url").write_text("redis://file/0")
    read = settings(
        monkeypatch,
        BROKER_URL_FILE=str(tmp_path / "url"),
        BROKER_URL="redis://env/0",
        CELERY_BROKER_URL="redis://env/0",
    )
    assert read["broker_url"] == os.environ["CELERY_BROKER_URL"] == "redis://file/0"


def test_rabbitmq_gets_no_redis_options(monkeypatch: pytest.MonkeyPatch) -> None:
    read = settings(monkeypatch, BROKER_URL="amqp://a", BROKER_PREFIX="p:")
    options = read["broker_transport_options"]
    assert options["confirm_publish"]
    assert not options.keys() & {"visibility_timeout", "global_keyprefix", "socket_timeout"}


@pytest.mark.parametrize(
    ("url", "option"), [("redis://a", "global_keyprefix"), ("amqps://a", "name_prefix")]
)
def test_the_prefix_stands_before_every_name_on_the_broker(
    monkeypatch: pytest.MonkeyPatch, url: str, option: str
) -> None:
    read = settings(monkeypatch, BROKER_URL=url, BROKER_PREFIX="shop:")
    assert read["broker_transport_options"][option] == "shop:"


def test_no_run_outlives_the_visibility_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    timeout = settings(monkeypatch)["broker_transport_options"]["visibility_timeout"]
    assert all(timeout > queue.time_limit + queue.drain_s for queue in SHIPPED.queues.values())


def test_every_declared_queue_is_known_by_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    queues = settings(monkeypatch)["task_queues"]
    assert {queue.name: queue.routing_key for queue in queues} == {q: q for q in SHIPPED.queues}


NARROW = Queue("narrow", downstream=Downstream("d", max_concurrency=3), time_limit=10)
WIDE = Queue("wide", processes=8, time_limit=600)


def test_several_queues_mean_the_smallest_concurrency_and_the_largest_time_limit() -> None:
    assert worker_options.concurrency([WIDE, NARROW]) == 3
    assert worker_options.time_limit_s([NARROW, WIDE]) == 600


def test_a_setting_of_the_project_wins_over_the_topology() -> None:
    conf = SimpleNamespace(worker_concurrency=7, task_time_limit=1.0)
    worker_options.derive(conf, ["payments"], given={})
    assert (conf.worker_concurrency, conf.task_time_limit) == (7, 1.0)


def test_a_worker_without_queues_of_its_own_is_small() -> None:
    conf = SimpleNamespace(worker_concurrency=None, task_time_limit=None)
    worker_options.derive(conf, [], given={})
    assert conf.worker_concurrency == worker_options.ALL_QUEUES_CONCURRENCY
    assert conf.task_time_limit == max(queue.time_limit for queue in TOPOLOGY.queues.values())
