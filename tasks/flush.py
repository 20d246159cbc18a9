"""The jobs of one batch in a worker: which have not started, and which outcomes are still to be
written.

Outcomes are written together, at most 50 ms after the first of them. What has not started goes
back when the worker drains, when the batch has taken too long, or when its downstream is paused.
One thread per process sees to both while a body runs.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

import structlog
from django.db import DatabaseError, InterfaceError, connection

from tasks import batch_ledger, connections, ledger, metrics, settle, wake
from tasks.batch_ledger import Named, Success
from tasks.board import BOARD
from tasks.errors import Cancelled, Interrupted
from tasks.journal import Place, Stage
from tasks.run import Run
from tasks.states import Outcome, State
from tasks.topology import Queue

log = structlog.get_logger(__name__)

# Seconds from the first outcome to its flush. The keeper does it beside the bodies, with a look
# each 10 ms; when it gets no turn, the runs do it themselves between two of them.
FLUSH_AFTER_S = 0.05
KEEPER_FLUSHES_AFTER_S = 0.035
LOOK_EVERY_S = 0.01
# Seconds after which a batch starts no further job. It was meant for 250 ms.
BUDGET_S = 1.0
# Seconds for which what has not started waits for a database that is away.
DATABASE_PATIENCE_S = 10.0


@dataclass(frozen=True)
class Ended:
    """A run whose body has returned, with what is still to be written of it."""

    run: Run
    result: str
    note: str
    began_at: float  # time.monotonic(), like the other
    ended_at: float

    def as_success(self, now: float) -> Success:
        claim = self.run.claim
        ago = {"began_ago_s": now - self.began_at, "ended_ago_s": now - self.ended_at}
        return Success(claim.id, claim.fence, self.result, self.note, **ago)


class Batch:
    """Its runs in the order of the message. May be used from several threads."""

    def __init__(self, jobs: Sequence[Named], place: Place, queue: Queue) -> None:
        """``jobs``: those that the message names."""
        self.began_at = time.monotonic()
        self._numbers = {job_id: number for number, (job_id, _) in enumerate(jobs)}
        self._place = place
        self._waiting: deque[Run] = deque()
        self._ended: dict[UUID, Ended] = {}
        self._started: dict[UUID, float] = {}
        self._is_paused = False
        self._asked_at = self._flushed_at = self.began_at
        self._lock = threading.Lock()
        # Two flushes at once would each wait for the database; the second has nothing to do.
        self._writing = threading.RLock()
        self._limit_name = queue.lock_name if queue.downstream else ""

    # --- start --------------------------------------------------------------------------

    def add(self, named: Sequence[Named], runs: Sequence[Run], *, claimed_at: float) -> None:
        """Of these jobs of the message those that were claimed. ``claimed_at``: before that."""
        with self._lock:
            self.began_at = claimed_at
            for run in runs:
                run.batch = self
                self._note(run, Stage.CLAIMED)
            for job_id in {job_id for job_id, _ in named} - {run.claim.id for run in runs}:
                self._place.note(self._numbers[job_id], Stage.GONE)
            self._waiting.extend(runs)

    def start_next(self) -> Run | None:
        """The next one that may start; None: there is none left."""
        while True:
            if self.must_stop:
                self.give_back()
            with self._lock:
                if not self._waiting:
                    return None
                run = self._waiting.popleft()
                reason = run.must_stop()
                if reason is None:
                    self._started[run.claim.id] = time.monotonic()
                    self._note(run, Stage.STARTED)
                    return run
            self.drop(run, reason)

    def drop(self, run: Run, reason: Interrupted) -> None:
        """It must not start any more."""
        if isinstance(reason, Cancelled):
            self._return([run])
        else:
            settle.interrupted(run, reason)
            self._note(run, Stage.GONE)

    @property
    def must_stop(self) -> bool:
        """The first job starts however late it is, or a slow database would stop all of them."""
        if BOARD.drain_has_begun or self._is_paused:
            return True
        return bool(self._started) and time.monotonic() - self.began_at > BUDGET_S

    def give_back(self) -> None:
        """All that has not started."""
        with self._lock:
            runs = list(self._waiting)
            self._waiting.clear()
        self._return(runs)

    def _return(self, runs: Sequence[Run]) -> None:
        if not runs:
            return
        log.info("batch_gives_back", jobs=len(runs))
        named = [(run.claim.id, run.claim.fence) for run in runs]
        try:
            happened = connections.persisting(
                batch_ledger.give_back, named, deadline_s=DATABASE_PATIENCE_S
            )
        except (DatabaseError, InterfaceError) as exc:  # their leases end
            log.error("batch_not_given_back", jobs=len(runs), error=str(exc))
            happened = {}
        for run in runs:
            run.settled = True
            self._note(run, Stage.GONE)
            if state := happened.get(run.claim.id):
                outcome = Outcome.CANCELLED if state == State.CANCELLED else "given_back"
                metrics.settled(run.claim.queue, run.claim.task, outcome)
        if happened:
            wake.after_commit()

    def ask_if_due(self) -> None:
        """Whether somebody has cancelled what has not started, or paused its downstream."""
        if time.monotonic() - self._asked_at >= KEEPER_FLUSHES_AFTER_S:
            self._asked_at = time.monotonic()
            self.ask()

    def ask(self) -> None:
        with self._lock:
            named = [(run.claim.id, run.claim.fence) for run in self._waiting]
        if not named:
            return
        if self._limit_name and connections.persisting(
            batch_ledger.is_stopped, self._limit_name, deadline_s=DATABASE_PATIENCE_S
        ):
            self.give_back()
            return
        cancelled = connections.persisting(
            batch_ledger.cancelled_among, named, deadline_s=DATABASE_PATIENCE_S
        )
        if cancelled:
            with self._lock:
                waiting, self._waiting = self._waiting, deque()
                gone = [run for run in waiting if run.claim.id in cancelled]
                self._waiting.extend(run for run in waiting if run.claim.id not in cancelled)
            self._return(gone)

    # --- end ----------------------------------------------------------------------------

    def succeeded(self, run: Run, *, result: str, note: str) -> bool:
        """To be written with the next flush."""
        settle.mark_over(run)
        began_at = self._started.get(run.claim.id, self.began_at)
        with self._lock:
            self._ended[run.claim.id] = Ended(run, result, note, began_at, time.monotonic())
            is_kept = not note and self._place.keep(self._numbers[run.claim.id], result)
        if not is_kept:
            self.flush()
        return True

    def left(self, run: Run) -> None:
        """Nothing more is done for this run here."""
        self._is_paused = self._is_paused or run.paused
        with self._lock:
            if run.claim.id not in self._ended:
                self._note(run, Stage.GONE)

    def oldest_s(self) -> float:
        """For how long the first outcome has been waiting, or one whose row was locked since the
        last flush; 0 when there is none."""
        with self._lock:
            oldest = next(iter(self._ended.values()), None)
            return time.monotonic() - max(oldest.ended_at, self._flushed_at) if oldest else 0.0

    def flush_if_due(self, after_s: float = FLUSH_AFTER_S) -> None:
        if self.oldest_s() >= after_s:
            self.flush()
            self.ask_if_due()

    def flush(self, *, waits: bool = False) -> None:
        """Write what has ended. Returns when it is committed, or nobody knows. What somebody keeps
        locked is left for the next flush, unless this one ``waits`` for it."""
        with self._writing:
            with self._lock:
                ended = list(self._ended.values())
            if not ended:
                return
            written = write(ended, waits=waits)
            with self._lock:
                self._flushed_at = time.monotonic()
                # Only now: a process that is stopped meanwhile writes them again, in vain.
                for one in written:
                    del self._ended[one.run.claim.id]
                    self._note(one.run, Stage.GONE)
                if not self._ended:
                    self._place.forget_results()

    def close(self) -> None:
        """At the end, however it came."""
        try:
            self.give_back()
        finally:
            self.flush()  # what is free first
            self.flush(waits=True)

    def _note(self, run: Run, stage: Stage) -> None:
        self._place.note(self._numbers[run.claim.id], stage)


def write(ended: Sequence[Ended], *, waits: bool) -> Sequence[Ended]:
    """In one statement; all but those that are locked. When PostgreSQL refuses that, one by one:
    only one of them may be bad."""
    try:
        happened, standing = connections.persisting(
            settle_all, ended, deadline_s=settle.DATABASE_PATIENCE_S, waits=waits
        )
    except (DatabaseError, InterfaceError) as exc:
        log.error("flush_failed", jobs=len(ended), error=str(exc))
        if not connections.is_lost():
            for one in ended:
                settle.end(
                    one.run, Outcome.SUCCEEDED, ledger.succeed, result=one.result, note=one.note
                )
        return ended
    written = [one for one in ended if standing.get(one.run.claim.id) != State.RUNNING]
    for one in written:
        # Another try may have written it, and the connection broke before it could say so.
        was_written = standing.get(one.run.claim.id) == State.SUCCEEDED
        note(one, one.run.claim.id in happened or was_written)
    return written


def settle_all(ended: Sequence[Ended], *, waits: bool) -> tuple[set[UUID], dict[UUID, str]]:
    """Which are settled, and the states of the others that are still those of these runs."""
    connection.ensure_connection()  # what comes now takes no time
    now = time.monotonic()
    happened = batch_ledger.succeed([one.as_success(now) for one in ended], waits=waits)
    claims = [one.run.claim for one in ended if one.run.claim.id not in happened]
    others = [(claim.id, claim.fence) for claim in claims]
    return happened, batch_ledger.standing(others) if others else {}


def note(one: Ended, happened: bool) -> None:
    claim = one.run.claim
    about = {"job_id": str(claim.id), "outcome": Outcome.SUCCEEDED, "fence": claim.fence}
    if happened:
        metrics.settled(claim.queue, claim.task, Outcome.SUCCEEDED)
        log.info("job_settled", **about)
    else:
        metrics.refused_write("succeed")
        log.warning("settle_refused", **about)


class Keeper:
    """The thread that looks after the batches of this process. A forked child starts its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches: set[Batch] = set()
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def keeping(self, batch: Batch) -> Iterator[None]:
        with self._lock:
            self._batches.add(batch)
            self._wanted.set()
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="batches", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._batches.discard(batch)
                if not self._batches:
                    self._wanted.clear()

    def _work(self) -> None:
        pause = threading.Event()
        while True:
            self._wanted.wait()
            pause.wait(LOOK_EVERY_S)
            with self._lock:
                batches = list(self._batches)
            for batch in batches:
                try:
                    look_after(batch)
                except Exception:  # the thread must live; the batch itself does it all again
                    log.exception("batch_not_looked_after")


def look_after(batch: Batch) -> None:
    if batch.must_stop:
        batch.give_back()
    batch.flush_if_due(KEEPER_FLUSHES_AFTER_S)
    batch.ask_if_due()


KEEPER = Keeper()
