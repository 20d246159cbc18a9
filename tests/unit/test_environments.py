"""Whatever is not called development or test is as strict as production."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from config.environment import WILL_NEVER_START, is_production
from devtools.child import ROOT

STRICT = ("production", "prod", "staging", "Development", "live")
NEVER_GIVEN = ("SECRET_KEY", "SECRET_KEY_FILE", "SSL_REDIRECT", "HSTS_SECONDS", "ENVIRONMENT")
ASK = """
import json
from project import settings
print(json.dumps([
    settings.PRODUCTION, settings.SESSION_COOKIE_SECURE, settings.CSRF_COOKIE_SECURE,
]))
"""


def run(*argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    given = {name: value for name, value in os.environ.items() if name not in NEVER_GIVEN}
    return subprocess.run(
        [sys.executable, *argv], cwd=ROOT, env={**given, **env},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("name", STRICT)
def test_a_name_that_is_not_for_development_gets_secure_cookies(name: str) -> None:
    done = run("-c", ASK, ENVIRONMENT=name, SECRET_KEY="k" * 40)
    assert json.loads(done.stdout) == [True, True, True]


@pytest.mark.parametrize("name", ["", "development", "test"])
def test_development_and_test_run_on_defaults(name: str) -> None:
    assert not is_production(name)
    assert run("-c", "import project.settings", ENVIRONMENT=name).returncode == 0


@pytest.mark.parametrize("argv", [("manage.py", "check"), ("-c", "import project.settings")])
@pytest.mark.parametrize("name", ["production", "prod"])
def test_without_a_secret_key_it_is_one_line_that_names_the_remedy(
    name: str, argv: tuple[str, ...]
) -> None:
    done = run(*argv, ENVIRONMENT=name)
    assert done.returncode == WILL_NEVER_START
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith(f"error: ENVIRONMENT is {name}, and SECRET_KEY is not set. Set")


def test_a_secret_that_is_not_mounted_is_one_line() -> None:
    done = run("manage.py", "check", SECRET_KEY_FILE="/nowhere/secret-key")
    [line] = done.stderr.splitlines()
    assert "SECRET_KEY_FILE is /nowhere/secret-key, which cannot be read: No such file" in line


WORKER = ("-m", "celery", "-A", "project", "worker", "-Q", "default")
RELAY = ("manage.py", "relay")


@pytest.mark.parametrize("argv", [WORKER, RELAY, ("manage.py", "check")])
@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_broker_address_that_cannot_be_read_is_one_line_with_the_remedy(
    argv: tuple[str, ...], content: bytes | None, tmp_path: Path
) -> None:
    path = tmp_path / "broker-url"
    if content is not None:
        path.write_bytes(content)
    done = run(*argv, BROKER_URL_FILE=str(path))
    assert done.returncode == WILL_NEVER_START
    assert "Traceback" not in done.stderr + done.stdout
    [line] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith(f"error: BROKER_URL_FILE is {path}, which cannot be read: ")
    assert "unset BROKER_URL_FILE and set BROKER_URL." in line


def answers(**env: str) -> set[str]:
    """Which of the questions about TLS are still open."""
    done = run("manage.py", "check", "--deploy", ENVIRONMENT="prod", SECRET_KEY="k" * 40, **env)
    return {code for code in ("W004", "W005", "W008", "W021") if f"security.{code}" in done.stderr}


@pytest.mark.parametrize(("redirect", "seconds"), [("on", "31536000"), ("off", "0")])
def test_an_answer_to_the_questions_about_tls_ends_them(redirect: str, seconds: str) -> None:
    assert answers() == {"W004", "W008"}
    assert answers(SSL_REDIRECT=redirect, HSTS_SECONDS=seconds) == set()
