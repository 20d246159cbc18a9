"""The probes of a container: files and addresses, and no Django."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from config import probe
from devtools.child import ROOT


@pytest.fixture
def pulse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PULSE_DIR", str(tmp_path / "pulse"))
    return tmp_path / "pulse"


def give(pulse: Path, sign: str, *, age_s: float = 0.0) -> None:
    pulse.mkdir(exist_ok=True)
    (pulse / sign).touch()
    then = time.time() - age_s
    os.utime(pulse / sign, (then, then))


def test_a_fresh_sign_is_a_yes_and_an_old_one_a_no(pulse: Path) -> None:
    give(pulse, "alive", age_s=29)
    give(pulse, "ready", age_s=21)
    assert probe.main(["alive"]) == 0
    assert probe.main(["ready"]) == 1


def test_alive_is_not_ready(pulse: Path) -> None:
    give(pulse, "alive")
    assert (probe.main(["alive"]), probe.main(["ready"])) == (0, 1)


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/healthz" else 503)
            self.end_headers()

        def log_message(self, *args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_who_leaves_no_signs_is_asked_over_http(
    server: HTTPServer, pulse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEB_BIND", f"0.0.0.0:{server.server_port}")
    assert probe.main(["alive"]) == 0
    assert probe.main(["ready"]) == 1
    assert probe.main([f"http://127.0.0.1:{server.server_port}/healthz"]) == 0


@pytest.mark.usefixtures("pulse")
def test_nobody_there_is_a_no(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEB_BIND", "0.0.0.0:9")
    assert probe.main(["alive"]) == 1


def test_it_imports_neither_django_nor_celery() -> None:
    program = (
        "import config.probe, sys;"
        " sys.exit(any(name.split('.')[0] in ('django', 'celery') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=30, check=True)
