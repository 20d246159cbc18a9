"""The servers start, and keep port and data over a restart and a crash."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import amqp
import psycopg
import pytest
import redis

from devtools import servers
from devtools.binaries import MissingBinary, postgres_programs
from devtools.ports import PortTaken, free_port, start_on_free_port
from devtools.pytest_rabbitmq import need_rabbitmq
from devtools.servers import Postgres, RabbitMQ, Redis


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[Postgres]:
    with Postgres(tmp_path, durable=False) as server:
        yield server


@pytest.fixture
def durable_redis(tmp_path: Path) -> Iterator[Redis]:
    with Redis(tmp_path, durable=True) as server:
        yield server


def execute(server: Postgres, statement: str) -> psycopg.Cursor[tuple[object, ...]]:
    return psycopg.connect(server.url, autocommit=True).execute(statement)


def test_postgres_keeps_its_address_and_data_over_a_restart(postgres: Postgres) -> None:
    address = postgres.url
    execute(postgres, "create table kept as select 7 as number")
    postgres.restart()
    assert postgres.url == address
    assert execute(postgres, "select number from kept").fetchall() == [(7,)]


def test_postgres_recovers_what_was_committed_before_it_was_killed(postgres: Postgres) -> None:
    execute(postgres, "create table kept as select 7 as number")
    postgres.kill()
    postgres.start()
    assert execute(postgres, "select number from kept").fetchall() == [(7,)]


def test_postgres_stops_cleanly_under_an_open_session(postgres: Postgres) -> None:
    session = psycopg.connect(postgres.url)
    assert postgres.stop() == 0
    with pytest.raises(psycopg.OperationalError):
        session.execute("select 1")


def test_postgres_wants_a_password(postgres: Postgres) -> None:
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(f"postgres://postgres@127.0.0.1:{postgres.port}/celeriac")


def test_postgres_refuses_data_of_another_version_and_says_so(postgres: Postgres) -> None:
    postgres.stop()
    (postgres.data / "PG_VERSION").write_text("9\n")
    with pytest.raises(Exception, match=r"PostgreSQL 9 made it.*PG_BIN"):
        postgres.start()


def test_redis_keeps_its_address_and_data_over_a_restart(durable_redis: Redis) -> None:
    address = durable_redis.url
    redis.Redis.from_url(durable_redis.url).set("kept", "7")
    durable_redis.restart()
    assert durable_redis.url == address
    assert redis.Redis.from_url(durable_redis.url).get("kept") == b"7"


def test_redis_never_evicts(durable_redis: Redis) -> None:
    client = redis.Redis.from_url(durable_redis.url)
    assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}


def test_rabbitmq_leaves_no_process_and_nothing_outside_its_directory(tmp_path: Path) -> None:
    need_rabbitmq()
    with RabbitMQ(tmp_path) as server:
        with pytest.raises(amqp.AccessRefused):
            amqp.Connection(f"127.0.0.1:{server.port}", "guest", "guest").connect()
        assert processes_of(tmp_path)
    assert processes_of(tmp_path) == []
    assert server.exit_code == 0
    assert (tmp_path / "data").exists()


def processes_of(directory: Path) -> list[int]:
    """Those with the directory in their environment; the directory of nodes is told by its port."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            told = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            if f"HOME={directory}".encode() in told:
                found.append(int(entry.name))
    return found


def test_a_wanted_port_that_is_taken_is_an_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortTaken, match=str(port)):
            Redis(tmp_path, port=port).start()


def test_a_port_lost_to_another_process_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = iter([taken.getsockname()[1], free_port()])
        monkeypatch.setattr("devtools.ports.free_port", lambda: next(ports))
        with Redis(tmp_path) as server:
            assert server.port != taken.getsockname()[1]


def test_giving_up_on_ports_is_an_error_after_a_few_tries() -> None:
    tried: list[int] = []

    def start(port: int) -> None:
        tried.append(port)
        raise PortTaken(str(port))

    with pytest.raises(PortTaken):
        start_on_free_port(start)
    assert 1 < len(tried) < 10


def test_missing_programs_are_an_error_that_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PG_BIN", str(tmp_path))
    with pytest.raises(MissingBinary, match="PG_BIN"):
        postgres_programs()


def test_settings_of_the_caller_do_not_reach_postgres(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPORT", "1")
    assert "PGPORT" not in servers._clean_environment()
