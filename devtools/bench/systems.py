"""The two competitors as processes: how each is started, fed and emptied."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from devtools.benched.load import SYSTEMS
from devtools.benched.redis_keys import PICKUPS, RELEASED, STARTS
from devtools.child import ROOT, Child, Program
from devtools.stack import Stack

PLAIN, CELERIAC = SYSTEMS
NAMES = (PLAIN, CELERIAC)
PROCESSES = 2
THREADS = 4
READY_WITHIN_S = 60.0
LOAD_WITHIN_S = 600.0
APP = {PLAIN: "devtools.benched.plain", CELERIAC: "project"}
JOBS_QUEUE = "bench"
QUEUE = {PLAIN: "bench-plain", CELERIAC: f"{JOBS_QUEUE},bench-batched"}
ASYNC_QUEUE = "bench-async"


@dataclass
class Bench:
    """The servers, and what runs on them at the moment."""

    stack: Stack
    broker: redis.Redis
    tally: Path  # a byte for each job that ran

    @classmethod
    def on(cls, stack: Stack) -> Bench:
        tally = Path(stack.env["BENCH_TALLY"])
        tally.touch()
        return cls(
            stack, redis.Redis.from_url(stack.env["BROKER_URL"], decode_responses=True), tally
        )

    def load(
        self, system: str, way: str, number: int, *, per_s: float | None = None
    ) -> dict[str, float]:
        """Runs the load generator to its end; what it measured."""
        rate = [] if per_s is None else [str(per_s)]
        return self.measured("devtools.benched.load", system, way, str(number), *rate)

    def measured(self, module: str, *arguments: str) -> dict[str, float]:
        """Runs a module of the measured side to its end; the JSON it printed."""
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env=self.stack.env,
            stdout=subprocess.PIPE,
            text=True,
            timeout=LOAD_WITHIN_S,
            check=True,
        )
        measured: dict[str, float] = json.loads(done.stdout)
        return measured

    def env(self, system: str) -> dict[str, str]:
        """Plain Celery is bare: no Django, and so nothing of ours, in its workers."""
        given = self.stack.env
        return {**given, "DJANGO_SETTINGS_MODULE": ""} if system == PLAIN else given

    def start_worker(self, system: str, *, name: str = "", queue: str = "") -> Child:
        """Returns when it takes messages. With a ``queue``, of as many slots as that says."""
        name = name or system
        slots = [] if queue else ["-c", str(PROCESSES)]
        child = self.stack.supervisor.start(
            Program(
                name=f"worker-{name}",
                role="worker",
                argv=[
                    *(sys.executable, "-m", "celery", "-A", APP[system], "worker"),
                    *("-Q", queue or QUEUE[system], *slots, "-n", f"{name}@%h"),
                    *("--without-mingle", "--without-gossip", "--loglevel", "WARNING"),
                ],
                env=self.env(system),
                stop_within_s=20.0,
            )
        )
        self.stack.supervisor.wait_until(
            lambda: self._takes_messages(child), f"worker {name}", within_s=READY_WITHIN_S
        )
        return child

    def start_relay(self) -> Child:
        return self.stack.start_relay()

    def start_web(self) -> str:
        """One process of four threads; its address."""
        self.stack.env.update(WEB_PROCESSES="1", WEB_THREADS=str(THREADS))
        self.stack.start_web()
        return self.stack.web_url

    def stop_all(self) -> None:
        supervisor = self.stack.supervisor
        for role in ("web", "relay", "worker"):
            supervisor.stop(*supervisor.names(role))

    def empty(self) -> None:
        """Nothing is left of the round before."""
        self.broker.flushdb()
        os.truncate(self.tally, 0)
        with self.stack.connect() as connection:
            connection.execute("TRUNCATE tasks_job CASCADE")
            connection.execute("DELETE FROM tasks_worker")

    def done(self) -> int:
        return self.tally.stat().st_size

    def pickups_ms(self) -> list[float]:
        values: Any = self.broker.lrange(PICKUPS, 0, -1)
        return [float(value) * 1000 for value in values]

    def starts(self) -> list[float]:
        """When bodies that are held began, epoch seconds."""
        values: Any = self.broker.lrange(STARTS, 0, -1)
        return [float(value) for value in values]

    def let_go(self) -> None:
        self.broker.set(RELEASED, 1)

    def server_pids(self) -> list[int]:
        servers = (self.stack.postgres, self.stack.redis)
        return [server.child.pid for server in servers if server and server.child]

    def _takes_messages(self, worker: Child) -> bool:
        """A consumer of Celery on Redis listens for remote control once it is ready."""
        name = f"{worker.name.removeprefix('worker-')}@"
        bound: Any = self.broker.smembers("_kombu.binding.celery.pidbox")
        return any(name in binding for binding in bound)
