"""Each service of docker-compose.yml: its exact command, as process 1, stopped in its own grace."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devtools.bench.cpu import children_of
from devtools.child import ROOT
from devtools.manifests import compose_binary
from devtools.ports import free_port
from tests.broker import Corner
from tests.processes import Process, database_url, running, wait_until

pytestmark = [pytest.mark.timeout(110), pytest.mark.django_db(transaction=True)]

UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
READY_WITHIN_S = 60.0
BIN = Path(sys.executable).parent
MOUNTED = "/run/celeriac"


def compose() -> dict[str, Any]:
    """As Docker's own parser resolves it, without an .env."""
    done = subprocess.run(
        [compose_binary(), "--env-file", os.devnull, "--profile", "*", "config", "--format=json"],
        cwd=ROOT, env={"PATH": os.environ["PATH"]},
        capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    services: dict[str, Any] = json.loads(done.stdout)["services"]
    return services


SERVICES = {name: service for name, service in compose().items() if "build" in service}
ONCE = [name for name, service in SERVICES.items() if service["restart"] == "no"]
ALWAYS = [name for name in SERVICES if name not in ONCE]


def can_be_first() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0


@pytest.fixture
def corner() -> Iterator[Corner]:
    corner = Corner()
    yield corner
    corner.clear()


@pytest.fixture
def volume(tmp_path: Path, corner: Corner) -> Path:
    """The secrets, as the service that makes them leaves them, with the addresses of here."""
    directory = tmp_path / "secrets"
    directory.mkdir()
    assert run_once("secrets", directory, corner).returncode == 0
    for name, url in (("database-url", database_url()), ("broker-url", corner.url)):
        (directory / name).unlink()
        (directory / name).write_text(url)
    return directory


def environment(service: str, volume: Path, corner: Corner) -> dict[str, str]:
    """Only what compose gives, and where things are on this machine."""
    given = {
        name: value.replace(MOUNTED, str(volume))
        for name, value in (SERVICES[service].get("environment") or {}).items()
    }
    return {
        **given,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "HOME": "/nonexistent",
        "PYTHONUNBUFFERED": "1",
        "PULSE_DIR": str(volume.parent / "pulse"),
        "BROKER_PREFIX": corner.prefix,
        "WEB_BIND": f"127.0.0.1:{free_port()}",
        "FLOWER_PORT": str(free_port()),
    }


def command(service: str, volume: Path) -> list[str]:
    return [part.replace(MOUNTED, str(volume)) for part in SERVICES[service]["command"]]


def run_once(service: str, volume: Path, corner: Corner) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(service, volume), cwd=ROOT, env=environment(service, volume, corner),
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("service", [name for name in ONCE if name != "secrets"])
def test_what_runs_once_ends_well(service: str, volume: Path, corner: Corner) -> None:
    done = run_once(service, volume, corner)
    assert done.returncode == 0, done.stdout + done.stderr
    if service == "first-login":
        assert f"admin / {(volume / 'admin-password').read_text().strip()}" in done.stdout


@pytest.mark.parametrize("service", ALWAYS)
def test_what_runs_always_is_healthy_and_stops_by_itself_in_its_grace(
    service: str, volume: Path, corner: Corner
) -> None:
    env = environment(service, volume, corner)
    in_namespace = can_be_first()
    as_first = ("timeout", "-s", "KILL", "100", *UNSHARE) if in_namespace else ()
    argv = [*as_first, *command(service, volume)]
    with running(Process(service, argv, env)) as process:
        wait_until(
            lambda: is_healthy(service, env, process), within_s=READY_WITHIN_S, what="healthy"
        )
        asked_at = time.monotonic()
        os.kill(process_one_of(process) if in_namespace else process.pid, signal.SIGTERM)
        assert process.wait(within_s=seconds(SERVICES[service]["stop_grace_period"])) == 0
        assert time.monotonic() - asked_at < seconds(SERVICES[service]["stop_grace_period"])


def is_healthy(service: str, env: dict[str, str], process: Process) -> bool:
    """By the service's own health check, on the ports of this test."""
    process.child.raise_if_ended()
    [_, *argv] = SERVICES[service]["healthcheck"]["test"]
    argv = [part.replace(":5555/", f":{env['FLOWER_PORT']}/") for part in argv]
    return subprocess.run(argv, cwd=ROOT, env=env, timeout=30, check=False).returncode == 0


def process_one_of(container: Process) -> int:
    """timeout -> unshare -> the first process of the namespace."""
    [unshare] = children_of(container.pid)
    [first] = children_of(unshare)
    return first


def seconds(duration: str) -> float:
    match = re.fullmatch(r"(?:(\d+)m)?(?:(\d+)s)?", duration)
    assert match is not None
    return int(match[1] or 0) * 60.0 + int(match[2] or 0)


def test_every_service_is_bounded_in_memory_and_in_logs() -> None:
    for name in ALWAYS:
        assert SERVICES[name]["deploy"]["resources"]["limits"]["memory"], name
        assert SERVICES[name]["logging"]["options"]["max-size"], name


def test_no_service_but_the_first_step_sees_a_secret() -> None:
    secrets = ("SECRET_KEY", "DATABASE_URL", "BROKER_URL", "FLOWER_BASIC_AUTH")
    for name, service in compose().items():
        if name != "secrets":
            assert not set(secrets) & set(service.get("environment") or {}), name
