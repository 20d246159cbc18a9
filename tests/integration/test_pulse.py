"""Signs of life: an outage of the broker or of the database makes no process look dead."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from config.probe import FRESH_FOR_S, is_fresh
from devtools.servers import Redis
from devtools.supervisor import Supervisor
from tasks import pulse
from tasks.heartbeat import HANGS_AFTER_S
from tests.processes import relay, wait_until, worker

pytestmark = [pytest.mark.timeout(110), pytest.mark.django_db(transaction=True)]


def age_s(sign: Path) -> float:
    return time.time() - sign.stat().st_mtime


def test_a_worker_without_a_broker_is_alive_and_not_ready(tmp_path: Path) -> None:
    signs = tmp_path / "pulse"
    with Supervisor() as supervisor:
        server = Redis(tmp_path / "redis")
        supervisor.add(server)
        env = {"BROKER_URL": server.url, "PULSE_DIR": str(signs)}
        with worker("default", env=env):
            wait_until((signs / "ready").exists, what="ready")
            assert is_fresh(signs / "alive", FRESH_FOR_S["alive"])
            server.stop()
            gone_at = time.time()
            limit_s = HANGS_AFTER_S + FRESH_FOR_S["ready"] + 10
            wait_until(
                lambda: not is_fresh(signs / "ready", FRESH_FOR_S["ready"]),
                within_s=limit_s, what="not ready",
            )  # fmt: skip
            assert (signs / "alive").stat().st_mtime > gone_at + HANGS_AFTER_S
            assert age_s(signs / "alive") < FRESH_FOR_S["alive"]


def test_a_relay_leaves_both_signs(tmp_path: Path) -> None:
    with relay(env={"PULSE_DIR": str(tmp_path)}):
        wait_until(lambda: (tmp_path / "ready").exists() and (tmp_path / "alive").exists())


def test_without_a_directory_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pulse.give("alive")
    assert list(tmp_path.iterdir()) == []
