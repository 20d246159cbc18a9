"""Secrets of a first look are made once; production makes none."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from config import secrets
from devtools.child import ROOT

GIVEN = {
    "ENVIRONMENT": "production",
    "RELEASE": "2026.48",
    "SECRET_KEY": "k" * 50,
    "DATABASE_PASSWORD": "p/w",
    "BROKER_PASSWORD": "b",
    "FLOWER_BASIC_AUTH": "ops:long",
}


def run(directory: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """As the service does it."""
    return subprocess.run(
        [sys.executable, "-m", "config.secrets", str(directory)],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip


def files(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text().strip() for path in directory.iterdir()}


def test_without_an_env_file_each_secret_is_made_and_kept(tmp_path: Path) -> None:
    assert run(tmp_path, {}).returncode == 0
    made = files(tmp_path)
    assert len(made["secret-key"]) >= 40
    assert made["database-password"] in made["database-url"]
    assert made["flower-login"] == f"flower:{made['flower-password']}"
    assert made["redis-auth.conf"] == f'requirepass "{made["broker-password"]}"'
    assert made["admin-password"]
    assert run(tmp_path, {}).returncode == 0
    assert files(tmp_path) == made


def test_two_installations_have_different_secrets(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        run(tmp_path / name, {})
    assert not set(files(tmp_path / "a").values()) & set(files(tmp_path / "b").values())


def test_production_takes_what_is_given_and_makes_no_administrator(tmp_path: Path) -> None:
    assert run(tmp_path, GIVEN).returncode == 0
    made = files(tmp_path)
    assert made["secret-key"] == GIVEN["SECRET_KEY"]
    assert made["database-url"] == "postgres://celeriac:p%2Fw@postgres:5432/celeriac"
    assert made["flower-login"] == "ops:long"
    assert "admin-password" not in made


@pytest.mark.parametrize("environment", ["production", "prod", "staging"])
@pytest.mark.parametrize("name", list(GIVEN)[1:])
def test_production_refuses_what_is_missing_and_writes_nothing(
    name: str, environment: str, tmp_path: Path
) -> None:
    done = run(tmp_path, {**GIVEN, "ENVIRONMENT": environment, name: ""})
    assert done.returncode == 1
    assert f"ENVIRONMENT is {environment}, and {name}" in done.stderr
    assert "Copy .env.example to .env" in done.stderr
    assert files(tmp_path) == {}


def test_servers_of_ones_own_need_no_password_here(tmp_path: Path) -> None:
    given = {**GIVEN, "DATABASE_PASSWORD": "", "DATABASE_URL": "postgres://u:p@db/x"}
    assert run(tmp_path, given).returncode == 0
    assert files(tmp_path)["database-url"] == "postgres://u:p@db/x"


def test_every_name_of_the_example_is_read_by_the_compose_file() -> None:
    names = {
        line.lstrip("# ").partition("=")[0]
        for line in (ROOT / ".env.example").read_text().splitlines()
        if line.lstrip("# ").partition("=")[0].isupper() and "=" in line
    }
    compose = (ROOT / "docker-compose.yml").read_text()
    names.remove("COMPOSE_PROFILES")  # is Docker's own
    assert [name for name in sorted(names) if f"${{{name}" not in compose] == []


def test_the_files_are_read_only(tmp_path: Path) -> None:
    secrets.write(tmp_path / "s", "x")
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o444
