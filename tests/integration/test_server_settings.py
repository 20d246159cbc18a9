"""The servers take the settings that docker-compose.yml gives them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis

from devtools.binaries import redis_server
from devtools.child import ROOT
from devtools.ports import LOOPBACK, free_port
from tests.processes import Process, database_url, running


def settings_of(file: str) -> Iterator[tuple[str, str]]:
    for line in (ROOT / "config" / file).read_text().splitlines():
        if line and not line.lstrip().startswith("#"):
            name, _, value = line.partition(" = ")
            yield name, value.strip("'")


def test_redis_starts_with_its_file_and_evicts_nothing(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "redis-auth.conf").write_text('requirepass "a secret"\n')
    text = (ROOT / "config" / "redis.conf").read_text()
    (tmp_path / "redis.conf").write_text(text.replace("/run/celeriac", str(tmp_path)))
    argv = [str(redis_server()), str(tmp_path / "redis.conf"), "--port", str(port)]
    with running(Process("redis", [*argv, "--dir", str(tmp_path)], dict(os.environ))) as process:
        process.wait_for("Ready to accept connections")
        with redis.Redis(LOOPBACK, port, password="a secret") as client:
            memory, persistence = client.info("memory"), client.info("persistence")
            assert memory["maxmemory_policy"] == "noeviction"
            assert memory["maxmemory"] == 256 * 1024 * 1024
            assert persistence["aof_enabled"] == 1
        with redis.Redis(LOOPBACK, port) as client, pytest.raises(redis.AuthenticationError):
            client.ping()


@pytest.mark.django_db
@pytest.mark.parametrize("setting", list(settings_of("postgresql.conf")), ids=lambda pair: pair[0])
def test_postgresql_takes_each_setting(setting: tuple[str, str]) -> None:
    """ALTER SYSTEM looks at the value; nothing is loaded, and it is taken back."""
    name, value = (psycopg.sql.Identifier(setting[0]), psycopg.sql.Literal(setting[1]))
    alter = psycopg.sql.SQL("ALTER SYSTEM SET {} = {}").format(name, value)
    reset = psycopg.sql.SQL("ALTER SYSTEM RESET {}").format(name)
    with psycopg.connect(database_url(), autocommit=True) as session:
        session.execute(alter)
        session.execute(reset)
