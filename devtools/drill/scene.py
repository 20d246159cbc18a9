"""Where a drill plays: the real processes, the witness, steady traffic, and what can be broken."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from types import TracebackType
from typing import LiteralString, Self

from psycopg.rows import class_row

from devtools.bench.cpu import children_of
from devtools.child import Child
from devtools.drill.books import runs_by_job, seconds_until_next_run
from devtools.drill.drill import Drill
from devtools.drill.evidence import Evidence, Freeze, JobRow, Kill, Promise, percentile
from devtools.drill.traffic import Answer, Order, Traffic, traffic
from devtools.drill.witness import books_of, witness
from devtools.ports import LOOPBACK
from devtools.proxy import FaultyProxy
from devtools.stack import Stack, Worker

QUEUE = "drill"
TENANT = "drill"
# Traffic goes on for at least this long, so that a few faults meet it.
TRAFFIC_LASTS_S = 8.0
# No job moved for this long: those that are left will never end.
STALLED_AFTER_S = 45.0
LOOK_EVERY_S = 0.5
LONGEST_WAIT_S = 60.0
PROMPT_S = 0.5
# Servers of our own, to be broken; single jobs are not worth a line in a log here.
ENVIRONMENT = {
    "DATABASE_URL": "",
    "BROKER_URL": "",
    "DJANGO_SETTINGS_MODULE": "devtools.drilled.settings",
    "DEBUG": "0",
    "LOG_LEVEL": "WARNING",
}


@dataclass(frozen=True)
class Stop:
    """A process that was told to stop: how long it took, and its exit code."""

    name: str
    seconds: float
    code: int | None


@dataclass(frozen=True)
class Step:
    """Part of what a drill does, and how long it took."""

    name: str
    seconds: float


JOBS = (
    "SELECT id::text, coalesce(idempotency_key, '') AS key, state, failure, attempts, crashes,"
    " error_message AS error FROM tasks_job ORDER BY seq"
)


class Scene:
    """Use it with ``with``; the main thread breaks things, and starts what is started again."""

    def __init__(self, drill: Drill, *, jobs: int, seed: int, lease_s: float | None) -> None:
        self.drill = drill
        self.random = Random(f"{drill.name}:{seed}")
        self.orders = [drill.orders(self.random, number) for number in range(jobs)]
        self.lease_s = lease_s or drill.lease_s
        self.answers: list[Answer] = []
        self.kills: list[Kill] = []
        self.freezes: list[Freeze] = []
        self.stops: list[Stop] = []
        self.promises: list[Promise] = []
        self.notes: list[str] = []
        self.steps: list[Step] = []
        self._numbers = count(1)
        self._traffic: Traffic | None = None
        self._exits = ExitStack()

    # --- the processes ------------------------------------------------------------------

    def __enter__(self) -> Self:
        with ExitStack() as exits:
            self.directory = Path(exits.enter_context(tempfile.TemporaryDirectory()))
            self.witness_url = exits.enter_context(witness())
            environment = {
                **ENVIRONMENT,
                "WITNESS_URL": self.witness_url,
                "DRILL_LEASE_S": str(self.lease_s),
                "DRILL_DRAIN_S": str(self.drill.drain_s),
                **self.drill.environment,
            }
            self.stack = exits.enter_context(
                Stack(workers=(), relays=0, web=False, environment=environment)
            )
            if self.drill.broker_is_proxied:
                self.broker = exits.enter_context(self._proxy_of_broker())
            self._start_processes()
            self._exits = exits.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Everything has ended: a graceful stop would show nothing and take long."""
        for child in (*self.relays, *self.workers):
            self.stack.supervisor.kill(child.name)
        self._exits.__exit__(kind, error, trace)

    def _proxy_of_broker(self) -> FaultyProxy:
        assert self.stack.redis is not None
        assert self.stack.redis.port is not None
        proxy = FaultyProxy(LOOPBACK, self.stack.redis.port)
        url = self.stack.redis.url
        self.stack.env["BROKER_URL"] = url.replace(f":{self.stack.redis.port}/", f":{proxy.port}/")
        return proxy

    def _start_processes(self) -> None:
        for _ in range(self.drill.workers):
            self.start_worker()
        for _ in range(self.drill.relays):
            self.start_relay()
        if self.drill.web:
            self.stack.start_web()
            self.token = self.stack.manage(
                "api_client", TENANT, "--tenant", TENANT, "--scopes", "enqueue"
            ).strip()
        self.stack.wait_for_workers()

    def start_worker(self, **environment: str) -> Child:
        """Returns at once: whoever replaces a worker does not wait for it either."""
        name = f"drill-{next(self._numbers)}"
        own = self.drill.of_worker(name, self.directory) if self.drill.of_worker else {}
        return self.stack.start_worker(Worker(QUEUE, name), {**own, **environment})

    def start_relay(self) -> Child:
        return self.stack.start_relay(f"relay-{next(self._numbers)}")

    def restart_web(self) -> None:
        """Callers ask again meanwhile, at the address where it is by then."""
        web = self.stack.supervisor["web"]
        assert isinstance(web, Child)
        self.stop(web)
        self.stack.start_web()

    def any_worker(self) -> Child:
        """One that takes work already, the oldest ones as likely as the new."""
        live = self.stack.live_workers()
        return self.random.choice([w for w in self.workers if w.pid in live.values()] or
                                  self.workers)  # fmt: skip

    def busy_worker(self) -> Child:
        """The one with the run that has lasted longest, as far as the witness knows."""
        running = {run.pid: -run.began for run in books_of(self.witness_url).runs if not run.ended}
        return max(
            self.workers,
            key=lambda worker: max(
                (running[pid] for pid in children_of(worker.pid) if pid in running),
                default=float("-inf"),
            ),
        )

    def worker_that_has_begun(self, task: str, *, ago_s: float) -> Child | None:
        """The next one whose run of this task began at most ``ago_s`` ago; None: the traffic ends
        before there is one."""
        found: list[Child] = []

        def looks() -> bool:
            young = {
                run.pid
                for run in books_of(self.witness_url).runs
                if not run.ended and run.task.endswith(task) and time.time() - run.began <= ago_s
            }
            found[:] = [w for w in self.workers if young.intersection(children_of(w.pid))]
            return bool(found)

        self.reaches(looks, within_s=LONGEST_WAIT_S, every_s=0.1)
        return found[0] if found else None

    @property
    def workers(self) -> list[Child]:
        return self._children("worker")

    @property
    def relays(self) -> list[Child]:
        return self._children("relay")

    def _children(self, role: str) -> list[Child]:
        supervisor = self.stack.supervisor
        found = [supervisor[name] for name in supervisor.names(role)]
        return [child for child in found if isinstance(child, Child)]

    # --- what can be broken -------------------------------------------------------------

    def kill(self, child: Child) -> None:
        """SIGKILL for the main process; what the kernel does with its children is part of it."""
        family = [child.pid, *children_of(child.pid)]
        os.kill(child.pid, signal.SIGKILL)
        self._note_kill(*family)
        self.stack.supervisor.kill(child.name)

    def kill_pool_child(self, worker: Child) -> None:
        children = children_of(worker.pid)
        if children:
            victim = self.random.choice(children)
            os.kill(victim, signal.SIGKILL)
            self._note_kill(victim)

    def _note_kill(self, *pids: int) -> None:
        now = time.time()
        self.kills += [Kill(pid, now) for pid in pids]

    @contextmanager
    def frozen(self, worker: Child) -> Iterator[None]:
        """SIGSTOP for the whole worker, as a hypervisor does to a machine."""
        family = [worker.pid, *children_of(worker.pid)]
        began = time.time()
        for pid in family:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in reversed(family):
                os.kill(pid, signal.SIGCONT)
            self.freezes.append(Freeze(frozenset(family), began, time.time()))

    def stop(self, child: Child) -> None:
        """SIGTERM, as a deploy does."""
        began = time.monotonic()
        code = child.stop()
        self.stops.append(Stop(child.name, time.monotonic() - began, code))
        self.stack.supervisor.stop(child.name)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """The report says how long the block took."""
        began = time.monotonic()
        yield
        self.steps.append(Step(name, time.monotonic() - began))

    # --- traffic and time ---------------------------------------------------------------

    @contextmanager
    def traffic(self, orders: Sequence[Order] | None = None) -> Iterator[Traffic]:
        """Orders (all, unless given) at a steady pace while the block breaks things, and on until
        each is sent."""
        sent = self.orders if orders is None else orders
        with traffic(lambda: self.stack.web_url, self.token, sent, per_s=self.per_s) as sending:
            self._traffic = sending
            yield sending
            while not sending.ends:
                self.pause(LOOK_EVERY_S)
            self.answers += sending.answers

    @property
    def per_s(self) -> float:
        """Few jobs come slower, so that a few faults meet them."""
        return min(self.drill.per_s, len(self.orders) / TRAFFIC_LASTS_S)

    def moments(self, every_s: float) -> Iterator[int]:
        """Irregular moments while the traffic lasts, counted from 1; the first comes early."""
        self.wait_within_traffic(every_s * self.random.uniform(0.3, 0.6))
        for number in count(1):
            if self._traffic is None or self._traffic.ends:
                return
            yield number
            self.wait_within_traffic(every_s * self.random.uniform(0.5, 1.5))

    def wait_within_traffic(self, seconds: float) -> None:
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at and self._traffic and not self._traffic.ends:
            self.pause(min(0.1, max(0.0, ends_at - time.monotonic())))

    def pause(self, seconds: float) -> None:
        """A process that dies in it, and was not killed by the drill, ends the drill."""
        ends_at = time.monotonic() + seconds
        while (left := ends_at - time.monotonic()) > 0:
            self.stack.supervisor.raise_for_failed()
            time.sleep(min(left, 0.1))

    def wait_until_all_ended(self) -> None:
        """Or until nothing has moved for so long that nothing ever will."""
        before, moved_at = -1, time.monotonic()
        while (left := self.unfinished()) and time.monotonic() - moved_at < STALLED_AFTER_S:
            if left != before:
                before, moved_at = left, time.monotonic()
            self.pause(LOOK_EVERY_S)

    def unfinished(self) -> int:
        return self.count_jobs("state NOT IN ('succeeded', 'failed', 'cancelled')")

    def count_jobs(self, where: LiteralString, *values: object) -> int:
        query: LiteralString = "SELECT count(*) FROM tasks_job WHERE " + where
        with self.stack.connect() as connection:
            row = connection.execute(query, values).fetchone()
        return int(str(row[0])) if row else 0

    def wait_until(self, condition: Callable[[], bool], what: str, *, within_s: float) -> None:
        self.stack.supervisor.wait_until(condition, what, within_s=within_s)

    def has_seen_effects_of_all(self) -> bool:
        """Of what no ledger knows, only the witness can say that it is done."""
        done = {effect.job for effect in books_of(self.witness_url).effects}
        return all(answer.job_id in done for answer in self.answers)

    def reaches(
        self, condition: Callable[[], bool], *, within_s: float, every_s: float = 0.005
    ) -> bool:
        """Waits while the traffic lasts, looking all the time."""
        ends_at = time.monotonic() + within_s
        while time.monotonic() < ends_at and self._traffic and not self._traffic.ends:
            if condition():
                return True
            time.sleep(every_s)
        return False

    # --- what is found ------------------------------------------------------------------

    def promise(self, what: str, kept: bool, found: str) -> None:
        """Beside what every drill promises."""
        self.promises.append(Promise(what, kept, found))

    def promise_next_run_within(self, seconds: float) -> None:
        waits = seconds_until_next_run(books_of(self.witness_url).runs)
        longest, usual = max(waits, default=0.0), percentile(waits, 50)
        self.promise(
            f"a job whose process died runs again within {seconds:g} s",
            longest <= seconds,
            f"{len(waits)} did, usually after {usual:.1f} s, the last after {longest:.1f} s",
        )

    def promise_prompt_answers(self) -> None:
        p99_s = percentile([answer.first_s for answer in self.answers], 99)
        self.promise(
            f"99 of 100 callers are answered within {PROMPT_S:g} s",
            p99_s <= PROMPT_S,
            f"within {p99_s:.3f} s",
        )

    def promise_stops_in_time(self, within_s: float) -> None:
        longest = max((stop.seconds for stop in self.stops), default=0.0)
        killed = sum(stop.code != 0 for stop in self.stops)
        self.promise(
            f"a stopped process is gone within {within_s:g} s, by itself",
            longest <= within_s and not killed,
            f"{len(self.stops)} were stopped, the longest took {longest:.1f} s,"
            f" {killed} had to be killed or failed",
        )

    def promise_no_second_run(self) -> None:
        """Nobody died, so nothing may run again."""
        again = [
            runs for runs in runs_by_job(books_of(self.witness_url).runs).values() if len(runs) > 1
        ]
        self.promise("no job runs twice", not again, f"{len(again)} did")

    def evidence(self) -> Evidence:
        with self.stack.connect() as connection:
            rows = connection.cursor(row_factory=class_row(JobRow)).execute(JOBS).fetchall()
        return Evidence(
            self.answers,
            rows,
            books_of(self.witness_url),
            self.kills,
            self.freezes,
            self.promises,
            self.drill.unwritten_s,
        )
