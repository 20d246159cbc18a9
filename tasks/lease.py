"""Keeps the runs of a worker alive: one statement renews all leases and brings back the news.

The parent renews for its live children, from a thread with a connection of its own, so a body
that holds the GIL is not taken for dead. Runs that end before the first renewal pay nothing.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import structlog

from tasks import adopt, coroutines, ledger, metrics
from tasks.batch import jobs_of
from tasks.board import BOARD, Board, Notice, Word
from tasks.interrupt import LOOK_EVERY_S
from tasks.journal import JOURNAL, Stage
from tasks.wiring import topology

log = structlog.get_logger(__name__)

# One renewal may fail and one may be late.
RENEWALS_PER_LEASE = 3
# In pauses between two renewals. A younger run ends most likely before its lease matters.
YOUNGER_PAYS_NOTHING = 0.5
# A row that was locked is asked for again this soon, well before anybody may rescue it.
LOCKED_IS_ASKED_AGAIN_AFTER_S = 1.0
# A run that missed its renewal was either settled at this moment, and says so in the next, or
# taken away while this process was frozen.
SETTLED_IS_SAID_AFTER_S = 0.5


@dataclass(frozen=True)
class Held:
    """A run that this worker holds, as its message and its process say."""

    job_id: UUID
    dispatch_no: int
    queue: str
    pid: int | None
    since: float  # time.time()

    def is_older_than(self, seconds: float) -> bool:
        """Also when the clock of this machine was set back meanwhile."""
        return not 0 <= time.time() - self.since < seconds


class Renewer:
    """``held`` lists the runs of this worker that are alive now."""

    def __init__(self, held: Callable[[], Iterable[Held]], board: Board = BOARD) -> None:
        self.held = held
        self.board = board
        self.every_s = min(topology().leases_s) / RENEWALS_PER_LEASE
        self.missed: dict[tuple[UUID, int], float] = {}
        self.renews_at = 0.0

    @property
    def pause_s(self) -> float:
        """Seconds until the next turn."""
        if self.missed:
            return SETTLED_IS_SAID_AFTER_S
        return max(0.0, min(self.every_s, self.renews_at - time.monotonic()))

    def turn(self) -> None:
        """Renew when it is time, and end what was lost. Raises DatabaseError."""
        self.end_the_lost()
        if time.monotonic() >= self.renews_at:
            # What it hears is heard by the runs a little later.
            self.renews_at = time.monotonic() + self.every_s - LOOK_EVERY_S
            self.renew()

    def renew(self) -> None:
        """On a DatabaseError nothing is posted, and the runs see the age of their renewal."""
        youth_s = self.every_s * YOUNGER_PAYS_NOTHING
        runs = list(self.held())
        old = [run for run in runs if run.is_older_than(youth_s)]
        if len(old) < len(runs):  # else one that is cancelled young hears of it a turn later
            self.renews_at = min(self.renews_at, time.monotonic() + youth_s)
        if not old and not self.missed:
            return
        asked_at = time.monotonic()
        kept = ledger.renew([(run.job_id, run.dispatch_no, lease_s(run)) for run in old])
        self.board.post([self.notice(run, kept, asked_at) for run in old])
        self.note_missed(old, kept)
        if not all(run.renewed for run in kept.values()):
            self.renews_at = min(self.renews_at, asked_at + LOCKED_IS_ASKED_AGAIN_AFTER_S)

    def notice(self, run: Held, kept: dict[UUID, ledger.Kept], renewed_at: float) -> Notice:
        """A locked row counts as renewed: while it is locked nobody can take it."""
        mine = kept.get(run.job_id)
        if mine is None:
            return Notice(run.job_id, run.dispatch_no, 0.0, Word.LOST)
        word = Word.CANCEL if mine.cancel_requested else Word.NOTHING
        return Notice(run.job_id, run.dispatch_no, renewed_at, word)

    def note_missed(self, old: Sequence[Held], kept: dict[UUID, ledger.Kept]) -> None:
        now = time.monotonic()
        lost = {(run.job_id, run.dispatch_no) for run in old if run.job_id not in kept}
        self.missed = {key: self.missed.get(key, now) for key in lost}

    def end_the_lost(self) -> None:
        """End the process of every run whose body goes on although its job has moved on.

        Celery holds a run as active until its loop has read the result. While it waits for a
        broker it reads none, and the process may have nothing to do with that run any more.
        """
        if not self.missed:
            return
        now = time.monotonic()
        for run in self.held():
            missed_at = self.missed.get((run.job_id, run.dispatch_no))
            if missed_at is not None and now - missed_at >= SETTLED_IS_SAID_AFTER_S:
                self.missed.pop((run.job_id, run.dispatch_no))
                if not self.board.is_over(run.job_id, run.dispatch_no):
                    end(run)


def lease_s(run: Held) -> float:
    """As a float, whatever the topology says: psycopg refuses a list of both."""
    return float(topology().queue(run.queue).lease)


def end(run: Held) -> None:
    metrics.refused_write("renew")
    log.error("lost_run_ended", job_id=str(run.job_id), dispatch_no=run.dispatch_no, pid=run.pid)
    if run.pid is not None and run.pid != os.getpid():
        try:
            os.kill(run.pid, signal.SIGKILL)
        except ProcessLookupError:
            return


def held_by(requests: Iterable[Any]) -> list[Held]:
    """The ledger's runs among the requests that Celery holds as active, adopted ones included."""
    return [
        one
        for request in tuple(requests)
        if request.time_start and getattr(request.task, "is_ledger_task", False)
        for one in held_by_one(request)
    ]


def held_by_one(request: Any) -> list[Held]:
    """Of a batch what is claimed and not settled, as its process says. When such a job is lost,
    that process is ended only if it runs that very job."""
    if not request.request_dict.get("batch"):
        one = held(request)
        if coroutines.gate_of(request.task) is None:
            return [one]
        since = coroutines.claimed_at(one.job_id, one.dispatch_no)
        return [] if since is None else [replace(one, since=since)]
    jobs, queue = jobs_of(request.request_dict), adopt.queue_of(request.task, request.request_dict)
    return [
        Held(*jobs[n], queue, entry.pid if stage == Stage.STARTED else None, request.time_start)
        for entry in JOURNAL.read(UUID(request.id))
        if entry.pid == request.worker_pid
        for n, stage in entry.claimed()
    ]


def held(request: Any) -> Held:
    return Held(
        adopt.job_id_of(request.id),
        adopt.dispatch_no_of(request.request_dict.get("dispatch_no")),
        adopt.queue_of(request.task, request.request_dict),
        request.worker_pid,
        request.time_start,
    )
