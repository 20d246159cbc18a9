"""What a task body sees of its job: ``current_run()``.

Outside a job everything here is inert, so a task stays a plain function in unit tests.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from inspect import signature
from typing import Any
from uuid import UUID

import structlog
from celery.exceptions import Retry
from django.db import connection

from tasks import connections, ledger, limits, metrics
from tasks.board import BOARD, Word
from tasks.errors import Cancelled, Draining, Interrupted, InvalidPayload, LeaseLost
from tasks.interrupt import WATCHER, Watch
from tasks.ledger import Claim
from tasks.links import Followers
from tasks.payload import MAX_PAYLOAD_BYTES
from tasks.strict_json import check_json, dumps
from tasks.topology import Queue
from tasks.wiring import topology

log = structlog.get_logger(__name__)

# Seconds between two looks at the ledger where no worker renews leases, however often a body
# calls check().
CHECK_EVERY_S = 1.0
# Part of a lease without a successful renewal after which a run stops by itself: two renewals
# have failed, and a third of the lease is left to notice.
STOPS_AFTER_LEASES = 2 / 3
# Seconds between two writes of the progress; the last one (done == total) is always written.
PROGRESS_EVERY_S = 0.5
# Seconds for which a body that writes waits for a database that is away.
DATABASE_PATIENCE_S = 10.0
MESSAGE_MAX = 500  # characters of a progress message
RECALLED_MAX = 1_000  # jobs that a pause takes back at once; the relay goes on each second


@dataclass(frozen=True)
class Step:
    """Told to the function of a step that wants to know.

    ``ambiguous``: an earlier run began this step and nobody knows whether it was done. Ask the
    downstream before doing it again.
    """

    name: str
    ambiguous: bool


@dataclass
class Run:
    """One run of one job, owned through its fence."""

    claim: Claim
    task: Any
    retry: Retry | None = None  # set by LedgerTask.retry, read when the run is settled
    exhausted: bool = False  # a retry was asked for and none is left
    settled: bool = False
    started: bool = False
    followers: Followers | None = None  # what is accepted with the success of this run
    deadline: float | None = None  # time.monotonic() of the hard time limit
    claimed_at: float = field(default_factory=time.monotonic)
    looked_at: float = 0.0
    reported_at: float = 0.0
    transactions: int = 0  # open around the body
    told: Interrupted | None = None  # that it must stop
    watches: list[Watch] = field(default_factory=list)
    batch: Any = None  # tasks.flush.Batch, which writes its success together with others
    slot: Any = None  # tasks.coroutines.Slot, of a coroutine on the shared loop
    paused: bool = False  # it had its downstream paused
    pause_s: float | None = None  # of the downstream, asked for inside a transaction
    pause_reason: str = ""

    # --- who I am ---------------------------------------------------------------------

    @property
    def job_id(self) -> UUID | None:
        return self.claim.id

    @property
    def key(self) -> str:
        return self.claim.key

    @property
    def attempt(self) -> int:
        """1 for the first run, and not counting runs whose process died."""
        return self.claim.attempts + 1

    @property
    def fence(self) -> int:
        return self.claim.fence

    @property
    def tenant(self) -> str:
        return self.claim.tenant

    @property
    def last_checkpoint(self) -> Any:
        """What the latest ``checkpoint`` of any run of this job kept; None without one."""
        return self.claim.checkpoint

    def downstream_key(self, name: str) -> str:
        """The same for every run of this job: pass it on, and the downstream sees a repeat."""
        return hashlib.sha256(f"{self.claim.id}:{name}".encode()).hexdigest()[:32]

    # --- should I go on? --------------------------------------------------------------

    def check(self) -> None:
        """Call it where stopping is safe. Costs no round trip on a worker.

        Raises Cancelled when that was asked for, LeaseLost when another may own the job,
        Draining when the worker stops. Let them rise.
        """
        try:
            if BOARD.is_open:
                self.check_board()
            else:
                self.check_ledger()
        except Interrupted as exc:
            self.told = exc
            raise

    def on_interrupt(self, callback: Callable[[], object]) -> Watch:
        """Call it once, from another thread, as soon as ``check()`` would raise.

        For a blocking call that can be ended from outside::

            with current_run().on_interrupt(connection.cancel_safe):
                connection.execute(...)

        What the call raises then leaves the block as Cancelled, LeaseLost or Draining. Without
        ``with`` it is in force until the body ends. Only on a worker.
        """
        watch = Watch(self.must_stop, callback)
        self.watches = [*(other for other in self.watches if not other.has_ended), watch]
        return WATCHER.add(watch)

    def must_stop(self) -> Interrupted | None:
        """What ``check()`` would raise, as far as this worker has heard."""
        try:
            if BOARD.is_open:
                self.check_board()
        except Interrupted as exc:
            self.told = exc
            return exc
        return None

    def check_board(self) -> None:
        notice = BOARD.read(self.claim.id, self.claim.dispatch_no)
        word = notice.word if notice else Word.NOTHING
        renewed_at = max(self.claimed_at, notice.renewed_at if notice else 0.0)
        if word == Word.LOST:
            raise LeaseLost("another run may own the job by now")
        if time.monotonic() - renewed_at > self.claim.lease_s * STOPS_AFTER_LEASES:
            raise LeaseLost("the lease could not be renewed")
        if word == Word.CANCEL:
            raise Cancelled("cancel was requested")
        if BOARD.is_draining:
            raise Draining("the worker stops")

    def check_ledger(self) -> None:
        now = time.monotonic()
        if now - self.looked_at < CHECK_EVERY_S:
            return
        self.looked_at = now
        owned = ledger.look(self.claim.id, self.claim.fence)
        if owned is None:
            raise LeaseLost("this run no longer owns its job")
        if owned.cancel_requested:
            raise Cancelled("cancel was requested")

    # --- what survives me -------------------------------------------------------------

    def checkpoint(self, data: Any) -> None:
        """Keep where the work stands; the next run finds it in ``last_checkpoint``."""
        self.require(self.write(ledger.checkpoint, stored(data, "checkpoint")))

    def progress(self, done: int, total: int | None = None, message: str = "") -> None:
        """For people who watch. Written at most twice a second, and at the end."""
        now = time.monotonic()
        if now - self.reported_at < PROGRESS_EVERY_S and done != total:
            return
        self.reported_at = now
        data = {"done": done, "total": total, "message": message[:MESSAGE_MAX]}
        self.require(self.write(ledger.progress, stored(data, "progress")))

    def emit(self, seq: int, data: Any) -> None:
        """An output row, once per job and ``seq``: a second run shows a reader nothing twice."""
        self.require(self.write(ledger.emit, seq, stored(data, "output")))

    def step(self, name: str, function: Callable[..., Any]) -> Any:
        """Do it once: the result is kept, and every later run gets it without the call.

        That it began is recorded before. ``function`` may take a Step, to see whether an
        earlier run began it too. Raises RuntimeError inside a transaction of the body, whose
        rollback would take that record along.
        """
        if open_transactions() > self.transactions:
            raise RuntimeError(f"step {name!r} inside a transaction: its record could be lost")
        begun = self.write(ledger.begin_step, name)
        if begun is None:
            raise LeaseLost("this run no longer owns its job")
        if begun.is_done:
            return begun.result
        step = Step(name, ambiguous=begun.is_ambiguous)
        result = stored(function(step) if takes_step(function) else function(), f"step {name!r}")
        self.require(self.write(ledger.end_step, name, result))
        return json.loads(result)

    # --- for all that call the same downstream ----------------------------------------

    def pause_downstream(self, seconds: float, reason: str = "") -> None:
        """Nothing of this downstream goes before then, at most a day; a longer pause stays.

        What was sent and has not started is taken back. Inside a transaction it is written once
        the body has ended, and whether or not that transaction commits. Raises ValueError when
        the queue has no downstream.
        """
        queue = topology().queue(self.claim.queue)
        if queue.downstream is None:
            raise ValueError(
                f"queue {queue.name!r} has no downstream to pause; give it one in"
                f" config/topology.py: Queue({queue.name!r}, downstream=Downstream(...))"
            )
        self.pause_s, self.pause_reason = seconds, reason
        if open_transactions() <= self.transactions:
            self.write_pause()

    def write_pause(self) -> None:
        """If one was asked for and is not written yet."""
        if self.pause_s is None:
            return
        seconds, self.pause_s, self.paused = self.pause_s, None, True
        connections.persisting(
            pause_and_recall,
            topology().queue(self.claim.queue),
            seconds,
            self.pause_reason,
            deadline_s=DATABASE_PATIENCE_S,
        )

    def write[T](self, change: Callable[..., T], *values: Any) -> T:
        """With the fence. A restart of the database is waited out, unless the body is in a
        transaction: that one is lost."""
        return connections.persisting(
            change, self.claim.id, self.fence, *values, deadline_s=DATABASE_PATIENCE_S
        )

    def require(self, happened: bool) -> None:
        if not happened:
            metrics.refused_write("run")
            raise LeaseLost("this run no longer owns its job")


class NoRun(Run):
    """Outside a job: nothing is checked, nothing is kept."""

    def __init__(self) -> None:
        super().__init__(NO_CLAIM, None)

    @property
    def job_id(self) -> None:
        return None

    def check(self) -> None:
        return

    def on_interrupt(self, callback: Callable[[], object]) -> Watch:
        return Watch(lambda: None, callback)

    def downstream_key(self, name: str) -> str:
        return f"no-job:{name}"

    def checkpoint(self, data: Any) -> None:
        stored(data, "checkpoint")

    def progress(self, done: int, total: int | None = None, message: str = "") -> None:
        return

    def emit(self, seq: int, data: Any) -> None:
        stored(data, "output")

    def pause_downstream(self, seconds: float, reason: str = "") -> None:
        return

    def step(self, name: str, function: Callable[..., Any]) -> Any:
        step = Step(name, ambiguous=False)
        result = function(step) if takes_step(function) else function()
        return json.loads(stored(result, f"step {name!r}"))


NO_CLAIM = Claim(UUID(int=0), 0, "", "", "", "", None, None, 0, 0, 0, None, 0.0)
NO_RUN = NoRun()

_active: ContextVar[Run] = ContextVar("tasks_run", default=NO_RUN)


def current_run() -> Run:
    """The run of the body that calls; an inert one outside a job."""
    return _active.get()


@contextmanager
def active(run: Run) -> Iterator[Run]:
    token = _active.set(run)
    try:
        yield run
    finally:
        for watch in run.watches:
            watch.end()
        _active.reset(token)


def pause_and_recall(queue: Queue, seconds: float, reason: str) -> None:
    limits.pause(queue.lock_name, seconds, reason)
    log.warning("downstream_paused", limit=queue.lock_name, seconds=seconds, reason=reason)
    ledger.recall(topology().sharing(queue), RECALLED_MAX)


def open_transactions() -> int:
    """How deep the connection is in transactions and savepoints."""
    return int(connection.in_atomic_block) + len(connection.savepoint_ids)


def takes_step(function: Callable[..., Any]) -> bool:
    """Whether it can be called with one positional argument."""
    try:
        signature(function).bind(None)
    except (TypeError, ValueError):
        return False
    return True


def stored(data: Any, what: str) -> str:
    """As JSON; what a body keeps is refused like a payload when JSON cannot hold it."""
    check_json(data, path=what)
    text = dumps(data)
    if len(text.encode()) > MAX_PAYLOAD_BYTES:
        raise InvalidPayload(f"larger than {MAX_PAYLOAD_BYTES} bytes", path=what, too_large=True)
    return text
