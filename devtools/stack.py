"""The whole system as processes here: servers, migrations, web, relay, workers, Flower."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg

from config import topology
from devtools.child import ROOT, Child, ChildFailed, Echo, Program
from devtools.given_servers import refuse_silent_servers
from devtools.ports import LOOPBACK, PortTaken, start_on_free_port
from devtools.servers import Postgres, Redis
from devtools.supervisor import Supervisor

READY_WITHIN_S = 60.0
MIGRATE_WITHIN_S = 120.0
STOP_WEB_WITHIN_S = 25.0
STOP_RELAY_WITHIN_S = 15.0
# Celery's page-long warning to whoever runs as root, as containers do. A filter cannot name it by
# its class, which is imported too late for that, but by the module that gives it.
NO_SUPERUSER_WARNING = "ignore::UserWarning:celery.platforms"
PORT_IS_TAKEN = re.compile(r"address already in use|connection in use", re.IGNORECASE)


@dataclass(frozen=True)
class Worker:
    """One ``celery worker`` process on one queue, or on several named with commas."""

    queue: str
    name: str
    arguments: tuple[str, ...] = ()

    @property
    def process(self) -> str:
        """What the supervisor calls it."""
        return f"worker-{self.name}"


@dataclass(frozen=True)
class Ports:
    """None is any free port."""

    web: int | None = None
    flower: int | None = None
    postgres: int | None = None
    redis: int | None = None


def one_worker_per_queue(queues: Iterable[str] | None = None) -> tuple[Worker, ...]:
    return tuple(Worker(queue, queue) for queue in queues or topology.TOPOLOGY.queues)


class Stack:
    """Everything, started by ``with`` and stopped at its end.

    ``DATABASE_URL`` and ``BROKER_URL`` of the caller are used where set; otherwise servers are
    started, with their data in ``directory``, or thrown away when there is none. ``environment``
    wins over the caller's; an empty URL in it asks for a server of one's own.
    """

    def __init__(
        self,
        *,
        workers: Iterable[Worker] | None = None,
        relays: int = 1,
        web: bool = True,
        flower: bool = False,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
        ports: Ports | None = None,
        echo: Echo | None = None,
    ) -> None:
        self.workers = one_worker_per_queue() if workers is None else tuple(workers)
        self.relays = relays
        self.web = web
        self.flower = flower
        self.ports = ports or Ports()
        self.supervisor = Supervisor(echo)
        self.postgres: Postgres | None = None
        self.redis: Redis | None = None
        self.web_url = ""
        self.flower_url = ""
        self.env = {**child_environment(), **(environment or {})}
        self._directory = directory
        self._exits = ExitStack()

    def __enter__(self) -> Self:
        refuse_silent_servers(self.env)
        with ExitStack() as exits:
            directory = self._directory or Path(
                exits.enter_context(
                    tempfile.TemporaryDirectory(prefix="celeriac-", ignore_cleanup_errors=True)
                )
            )
            exits.enter_context(self.supervisor)
            self._start_servers(directory)
            self.manage("migrate", "--no-input")
            self._start_programs()
            self._exits = exits.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._exits.__exit__(kind, error, trace)

    def manage(self, *arguments: str, env: Mapping[str, str] | None = None) -> str:
        """Runs ``manage.py`` to its end; what it printed."""
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT,
            env={**self.env, **(env or {})},
            capture_output=True,
            text=True,
            timeout=MIGRATE_WITHIN_S,
            check=False,
        )
        if done.returncode != 0:
            raise ChildFailed(
                f"manage.py {arguments[0]}",
                f"exited with code {done.returncode}",
                done.stdout + done.stderr,
            )
        return done.stdout

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(self.env["DATABASE_URL"], autocommit=True, connect_timeout=5)

    def start_web(self) -> None:
        port = start_on_free_port(self._start_web_on, wanted=self.ports.web)
        self.web_url = f"http://{LOOPBACK}:{port}"

    def start_relay(self, name: str = "relay") -> Child:
        return self.supervisor.start(
            Program(
                name=name,
                role="relay",
                argv=[sys.executable, "manage.py", "relay"],
                env=self.env,
                stop_within_s=STOP_RELAY_WITHIN_S,
            )
        )

    def start_worker(self, worker: Worker, environment: Mapping[str, str] | None = None) -> Child:
        """Returns at once: see ``wait_for_workers``."""
        return self.supervisor.start(
            Program(
                name=worker.process,
                role="worker",
                argv=[
                    *(sys.executable, "-m", "celery", "-A", "project", "--quiet", "worker"),
                    *("-Q", worker.queue, "-n", f"{worker.name}@%h"),
                    # Flower shows the tasks whose events it got, and asks for none itself.
                    *(["-E"] if self.flower else []),
                    *worker.arguments,
                ],
                env={**self.env, **(environment or {})},
                stop_within_s=max(
                    topology.TOPOLOGY.queue(queue).stop_grace_s for queue in worker.queue.split(",")
                ),
            )
        )

    def start_flower(self) -> None:
        port = start_on_free_port(self._start_flower_on, wanted=self.ports.flower)
        self.flower_url = f"http://{LOOPBACK}:{port}"

    def live_workers(self, *, within_s: float = 15.0) -> dict[str, int]:
        """Name and pid of the workers that take work and beat this lately (database clock)."""
        with self.connect() as connection:
            rows = connection.execute(
                "select name, pid from tasks_worker where stopped_at is null and not draining"
                " and last_beat > clock_timestamp() - make_interval(secs => %s)",
                [within_s],
            ).fetchall()
        return {str(name): int(str(pid)) for name, pid in rows}

    def wait_for_workers(
        self, count: int | None = None, *, within_s: float = READY_WITHIN_S
    ) -> None:
        """Until so many live; without a count, until each that was started here does."""

        def are_there() -> bool:
            live = self.live_workers()
            if count is not None:
                return len(live) >= count
            return set(self._worker_pids()) <= set(live.values())

        what = "every worker" if count is None else f"{count} workers"
        self.supervisor.wait_until(are_there, f"a heartbeat of {what}", within_s=within_s)

    def _worker_pids(self) -> list[int]:
        workers = (self.supervisor[name] for name in self.supervisor.names("worker"))
        return [worker.pid for worker in workers if isinstance(worker, Child)]

    def _start_servers(self, directory: Path) -> None:
        if not self.env.get("DATABASE_URL"):
            self.postgres = Postgres(directory / "postgres", port=self.ports.postgres)
            self.supervisor.add(self.postgres)
            self.env["DATABASE_URL"] = self.postgres.url
        if not self.env.get("BROKER_URL"):
            self.redis = Redis(
                directory / "redis", durable=self._directory is not None, port=self.ports.redis
            )
            self.supervisor.add(self.redis)
            self.env["BROKER_URL"] = self.redis.url

    def _start_programs(self) -> None:
        """The slow starters first; none waits for another."""
        for worker in self.workers:
            self.start_worker(worker)
        for number in range(1, self.relays + 1):
            self.start_relay("relay" if number == 1 else f"relay-{number}")
        if self.web:
            self.start_web()
        if self.flower:
            self.start_flower()
        self.wait_for_workers()

    def _start_web_on(self, port: int) -> None:
        child = self.supervisor.start(
            Program(
                name="web",
                role="web",
                argv=[
                    *(sys.executable, "-m", "gunicorn", "project.wsgi:application"),
                    *("-c", "config/gunicorn.py", "--bind", f"{LOOPBACK}:{port}"),
                    "--no-control-socket",  # it has one path per user: two stacks would share it
                ],
                env=self.env,
                stop_within_s=STOP_WEB_WITHIN_S,
            )
        )
        self._wait_for_page(child, f"http://{LOOPBACK}:{port}/readyz")

    def _start_flower_on(self, port: int) -> None:
        child = self.supervisor.start(
            Program(
                name="flower",
                role="flower",
                argv=[
                    *(sys.executable, "-m", "celery", "-A", "project", "flower"),
                    *(f"--address={LOOPBACK}", f"--port={port}"),
                ],
                env=self.env,
            )
        )
        self._wait_for_page(child, f"http://{LOOPBACK}:{port}/healthcheck")

    def _wait_for_page(self, child: Child, url: str) -> None:
        try:
            self.supervisor.wait_until(
                lambda: PORT_IS_TAKEN.search(child.tail()) is not None or page_status(url) == 200,
                url,
                within_s=READY_WITHIN_S,
            )
        except TimeoutError as late:
            raise child.failure(f"is not ready: {late}, last answer {page_status(url)}") from late
        except ChildFailed:
            if PORT_IS_TAKEN.search(child.tail()) is None:
                raise
        if PORT_IS_TAKEN.search(child.tail()):
            self.supervisor.kill(child.name)
            raise PortTaken(f"the port of {url} is taken")


def page_status(url: str) -> int | None:
    """The status of the answer, None when there is no answer."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as answer:
        return answer.code
    except OSError:
        return None


def release() -> str:
    """The short hash of the commit, or "dev" where there is none."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except OSError:
        return "dev"
    return done.stdout.strip() or "dev" if done.returncode == 0 else "dev"


def child_environment() -> dict[str, str]:
    """The caller's environment, and what a development stack needs where it says nothing."""
    defaults = {
        "SECRET_KEY": secrets.token_urlsafe(48),
        "DEBUG": "1",
        "ENVIRONMENT": "development",
        "ALLOWED_HOSTS": "127.0.0.1,localhost",
        "FLOWER_BASIC_AUTH": f"flower:{secrets.token_urlsafe(12)}",
        "RELEASE": release(),
        "DJANGO_SETTINGS_MODULE": "project.settings",
        "PYTHONUNBUFFERED": "1",
    }
    warnings = filter(None, (os.environ.get("PYTHONWARNINGS"), NO_SUPERUSER_WARNING))
    return {**defaults, **os.environ, "PYTHONWARNINGS": ",".join(warnings)}
