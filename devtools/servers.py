"""Real servers as child processes, without Docker and without root rights."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import amqp
import psycopg
import redis

from devtools.binaries import postgres_programs, rabbitmq_server, redis_server
from devtools.child import Child, ChildFailed, Echo, Program
from devtools.ports import LOOPBACK, PortTaken, free_port, start_on_free_port
from devtools.secrets_kept import kept_secret, write_private
from devtools.unprivileged import confinement, explanation, hand_over

START_WITHIN_S = 30.0
INITDB_WITHIN_S = 120.0
DATABASE = "celeriac"
PORT_IS_TAKEN = re.compile(r"address already in use|eaddrinuse", re.IGNORECASE)
# For throw-away databases: a crash of the machine destroys the data, a crash of the server does
# not. It would lose commits with synchronous_commit=off, and that gains nothing here.
NOT_DURABLE = ("fsync=off", "full_page_writes=off")


class Server:
    """What they have in common: one child, one port for life, a URL."""

    role: str
    start_within_s = START_WITHIN_S
    stop_within_s: float

    def __init__(
        self, directory: Path, *, durable: bool, port: int | None = None, echo: Echo | None = None
    ) -> None:
        self.directory = directory
        self.durable = durable
        self.port = port
        self._echo = echo
        self.child: Child | None = None

    @property
    def name(self) -> str:
        return self.role

    @property
    def url(self) -> str:
        raise NotImplementedError

    def start(self) -> None:
        """Returns when it answers. The port it found is the one it keeps."""
        self._prepare()
        self.port = start_on_free_port(self._start_on, wanted=self.port)

    def stop(self) -> int | None:
        return None if self.child is None else self.child.stop()

    def kill(self) -> int | None:
        return None if self.child is None else self.child.kill()

    def restart(self) -> None:
        """The same port and the same data."""
        self.stop()
        self.start()

    @property
    def has_failed(self) -> bool:
        return self.child is not None and self.child.has_failed

    @property
    def exit_code(self) -> int | None:
        return None if self.child is None else self.child.exit_code

    def tail(self, lines: int = 20) -> str:
        return "" if self.child is None else self.child.tail(lines)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _prepare(self) -> None:
        raise NotImplementedError

    def _program(self, port: int) -> Program:
        raise NotImplementedError

    def _answers(self, port: int) -> bool:
        raise NotImplementedError

    def _start_on(self, port: int) -> None:
        child = self.child = Child(self._program(port), self._echo)
        child.start()
        try:
            self._wait_until_it_answers(child, port)
        except BaseException:
            child.kill()
            raise

    def _wait_until_it_answers(self, child: Child, port: int) -> None:
        deadline = time.monotonic() + self.start_within_s
        # The child is asked first: another server on the port would answer, too.
        while child.is_running:
            if self._answers(port):
                return
            if time.monotonic() > deadline:
                raise child.failure(f"did not answer within {self.start_within_s:g} s")
            time.sleep(0.05)
        if PORT_IS_TAKEN.search(child.tail()):
            raise PortTaken(f"port {port} for {self.name} is taken")
        child.raise_if_ended()


class Postgres(Server):
    """Data lives in ``directory``. Not durable means faster, for throw-away databases."""

    role = "postgres"
    stop_within_s = 20.0

    def __init__(
        self,
        directory: Path,
        *,
        durable: bool = True,
        port: int | None = None,
        echo: Echo | None = None,
    ) -> None:
        super().__init__(directory, durable=durable, port=port, echo=echo)
        self._programs = postgres_programs()
        self._password = ""

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def url(self) -> str:
        return self._url_on(self.port, DATABASE)

    def stop(self) -> int | None:
        """Fast shutdown: sessions are ended, data are flushed. After the deadline, immediate."""
        if self.child is not None and self.child.is_running:
            self.child.signal(signal.SIGINT)
            if not _ends(self.child, self.stop_within_s):
                self.child.signal(signal.SIGQUIT)
                _ends(self.child, 5.0)
        return super().stop()

    def _prepare(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._password = kept_secret(self.directory / "password")
        if (self.data / "PG_VERSION").exists():
            self._refuse_another_version()
        else:
            self._init()

    def _refuse_another_version(self) -> None:
        made_by = (self.data / "PG_VERSION").read_text().strip()
        answer = subprocess.run(
            [self._programs / "postgres", "--version"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        ).stdout
        if not re.search(rf"\s{re.escape(made_by)}[.\w]", answer):
            raise ChildFailed(
                self.name,
                f"cannot use {self.data}: PostgreSQL {made_by} made it"
                f" and this is {answer.strip()}. Remove that directory or set PG_BIN.",
                "",
            )

    def _init(self) -> None:
        hand_over(self.directory)
        done = subprocess.run(
            [
                self._programs / "initdb",
                f"--pgdata={self.data}",
                "--username=postgres",
                f"--pwfile={self.directory / 'password'}",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--locale=C",
                *([] if self.durable else ["--no-sync"]),
            ],
            env=_clean_environment(),
            capture_output=True,
            text=True,
            timeout=INITDB_WITHIN_S,
            check=False,
            preexec_fn=confinement(),
        )
        if done.returncode != 0:
            raise ChildFailed(
                "initdb", f"exited with code {done.returncode}", done.stderr + explanation()
            )

    def _program(self, port: int) -> Program:
        settings = [
            f"port={port}",
            f"listen_addresses={LOOPBACK}",
            "unix_socket_directories=",
            "max_connections=200",
            "log_checkpoints=off",
            *(() if self.durable else NOT_DURABLE),
        ]
        return Program(
            name=self.name,
            role=self.role,
            argv=[
                str(self._programs / "postgres"),
                "-D",
                str(self.data),
                *(part for setting in settings for part in ("-c", setting)),
            ],
            env=_clean_environment(),
            stop_signal=signal.SIGQUIT,
            orphan_signal=signal.SIGINT,
            confine=confinement(),
        )

    def _answers(self, port: int) -> bool:
        try:
            with psycopg.connect(
                self._url_on(port, "postgres"), connect_timeout=2, autocommit=True
            ) as connection:
                if not connection.execute(
                    "select 1 from pg_database where datname = %s", [DATABASE]
                ).fetchone():
                    connection.execute(f"create database {DATABASE}")
        except psycopg.OperationalError:
            return False
        return True

    def _url_on(self, port: int | None, database: str) -> str:
        return f"postgres://postgres:{self._password}@{LOOPBACK}:{port}/{database}"


class Redis(Server):
    """Durable means an append-only file in ``directory``; otherwise everything is in memory."""

    role = "redis"

    def __init__(
        self,
        directory: Path,
        *,
        durable: bool = False,
        port: int | None = None,
        echo: Echo | None = None,
    ) -> None:
        super().__init__(directory, durable=durable, port=port, echo=echo)
        self._binary = redis_server()
        self._password = secrets.token_urlsafe(18)

    @property
    def url(self) -> str:
        return self._url_on(self.port)

    def _prepare(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)

    def _program(self, port: int) -> Program:
        settings = self.directory / "redis.conf"
        write_private(
            settings,
            f"bind {LOOPBACK}\n"
            f"port {port}\n"
            f"requirepass {self._password}\n"
            f'dir "{self.directory}"\n'
            f"appendonly {'yes' if self.durable else 'no'}\n"
            'save ""\n'
            "maxmemory-policy noeviction\n"
            "databases 64\n",
        )
        return Program(
            name=self.name,
            role=self.role,
            argv=[str(self._binary), str(settings)],
            orphan_signal=signal.SIGTERM,
        )

    def _answers(self, port: int) -> bool:
        try:
            with redis.Redis.from_url(self._url_on(port), socket_timeout=2) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def _url_on(self, port: int | None) -> str:
        return f"redis://:{self._password}@{LOOPBACK}:{port}/0"


class RabbitMQ(Server):
    """A node of its own: name, ports, cookie, data and log touch no other node of the machine.

    Everything is in ``directory``, and queues that are durable survive a restart.
    ``settings`` are those of its application ``rabbit``.
    """

    role = "rabbitmq"
    start_within_s = 60.0  # 5 s of two processors, which a test run shares
    stop_within_s = 20.0

    def __init__(
        self,
        directory: Path,
        *,
        port: int | None = None,
        echo: Echo | None = None,
        settings: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(directory, durable=True, port=port, echo=echo)
        self._settings = settings or {}
        self._script = rabbitmq_server()
        self._password = secrets.token_urlsafe(18)
        # Erlang's directory of nodes. Ours: the usual one is shared and outlives its nodes.
        self._names: Child | None = None
        self._names_port = 0

    @property
    def url(self) -> str:
        return f"amqp://celeriac:{self._password}@{LOOPBACK}:{self.port}//"

    def stop(self) -> int | None:
        code = super().stop()
        if self._names is not None:
            self._names.stop()
        return code

    def kill(self) -> int | None:
        code = super().kill()
        if self._names is not None:
            self._names.kill()
        return code

    def _prepare(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "enabled_plugins").write_text("[].\n")

    def _start_on(self, port: int) -> None:
        self._names_port = free_port()
        self._names = Child(self._directory_of_nodes(), self._echo)
        self._names.start()
        try:
            super()._start_on(port)
        except BaseException:
            self._names.kill()
            raise

    def _directory_of_nodes(self) -> Program:
        return Program(
            name="epmd",
            role=self.role,
            argv=["epmd", "-address", LOOPBACK, "-port", str(self._names_port)],
            env={"PATH": os.environ["PATH"], "HOME": str(self.directory)},
        )

    def _program(self, port: int) -> Program:
        settings = self.directory / "rabbitmq.conf"
        write_private(
            settings,
            f"listeners.tcp.1 = {LOOPBACK}:{port}\n"
            "default_user = celeriac\n"
            f"default_pass = {self._password}\n"
            "log.file = false\n"
            "log.console = true\n"
            "log.console.level = warning\n"
            # The disk of a laptop is often fuller than the default allows.
            "disk_free_limit.absolute = 10MB\n",
        )
        return Program(
            name=self.name,
            role=self.role,
            argv=[str(self._script)],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.directory),  # the cookie
                "LANG": "C.UTF-8",
                "ERL_EPMD_PORT": str(self._names_port),
                "ERL_EPMD_ADDRESS": LOOPBACK,
                # Makes the script become the server: it would stay, and stop the server with
                # another Erlang that takes a second.
                "RUNNING_UNDER_SYSTEMD": "1",
                "RABBITMQ_NODENAME": "celeriac@localhost",
                "RABBITMQ_DIST_PORT": str(free_port()),
                "RABBITMQ_CONFIG_FILE": str(settings),
                "RABBITMQ_CONF_ENV_FILE": os.devnull,
                "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.directory / "enabled_plugins"),
                "RABBITMQ_MNESIA_BASE": str(self.directory / "data"),
                "RABBITMQ_LOG_BASE": str(self.directory / "log"),
                "RABBITMQ_LOGS": "-",
                "RABBITMQ_PID_FILE": str(self.directory / "pid"),
                # Two schedulers that sleep when there is nothing to do.
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": " ".join(
                    [
                        "-kernel inet_dist_use_interface {127,0,0,1} +S 2:2 +sbwt none",
                        *(f"-rabbit {name} {value}" for name, value in self._settings.items()),
                    ]
                ),
            },
            stop_within_s=self.stop_within_s,
            orphan_signal=signal.SIGTERM,
        )

    def _answers(self, port: int) -> bool:
        try:
            with amqp.Connection(
                f"{LOOPBACK}:{port}", "celeriac", self._password, connect_timeout=2
            ):
                return True
        except (OSError, amqp.AMQPError):
            return False


def _ends(child: Child, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while child.is_running and time.monotonic() < deadline:
        time.sleep(0.02)
    return not child.is_running


def _clean_environment() -> dict[str, str]:
    """PGDATA, PGPORT and their like of the caller would redirect our server."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return {**kept, "LC_ALL": "C"}
