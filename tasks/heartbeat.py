"""A worker's row in the database: what it takes, how much of it, and that it is alive.

A thread with its own connection writes it, so that a slow database never stops the consumer.
The consumer's timer only notes that the loop turns; when it hangs or has no broker, the beat
stops and the row goes stale.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog
from celery import bootsteps, signals
from celery.worker import state
from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection

from tasks import coroutines, pulse
from tasks.board import BOARD
from tasks.connections import bounded
from tasks.health import RelayWatch
from tasks.lease import Held, Renewer, held_by

log = structlog.get_logger(__name__)

# Three beats may be missed before a row counts as dead: one for a hiccup, one for a restart of
# the database, and the third for the doubt.
BEAT_S = 5.0
LIVE_S = 15.0
TURN_S = 1.0
# A loop that has not turned for this long hangs. Longer than its slowest honest turn, a
# blocking connection attempt.
HANGS_AFTER_S = 8.0
FORGET_AFTER_S = 24 * 3600.0  # rows of workers that are gone, for whoever asks what ran here
LAST_BEAT_WITHIN_S = 3.0


@dataclass(frozen=True)
class Vitals:
    """What the row says of this worker."""

    name: str
    host: str
    pid: int
    release: str
    queues: Sequence[str]
    known_tasks: Sequence[str]
    capacity: int
    busy: int
    draining: bool
    reconnects: int = 0


@dataclass
class Turning:
    """What the loop tells the beating thread: when it turned last, and what it saw then."""

    at: float = field(default_factory=time.monotonic)
    queues: Sequence[str] = ()
    capacity: int = 0
    busy: int = 0
    reconnects: int = 0

    @property
    def hangs(self) -> bool:
        return time.monotonic() - self.at > HANGS_AFTER_S


class Heartbeat(bootsteps.StartStopStep):
    """Lives as long as the worker; the consumer restarts it with each broker connection."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        self.beater: Beater | None = None
        self.timer_entry: Any = None
        self.connected = 0
        super().__init__(consumer, **kwargs)

    def start(self, consumer: Any) -> None:
        if self.timer_entry is not None:
            self.timer_entry.cancel()
        if self.beater is None:
            BOARD.open()
            self.beater = Beater(consumer.hostname, known_tasks(consumer.app))
        self.connected += 1
        self.beater.is_disconnected = False
        turned = self.turned(consumer)
        turned()
        self.timer_entry = consumer.timer.call_repeatedly(TURN_S, turned)
        self.beater.start()

    def stop(self, consumer: Any) -> None:
        """The broker is lost, or the worker stops."""
        if self.beater is not None:
            self.beater.is_disconnected = True

    def shutdown(self, consumer: Any) -> None:
        """The pool has ended: nothing runs here any more."""
        if self.beater is not None:
            self.beater.end()

    def turned(self, consumer: Any) -> Any:
        def turned() -> None:
            if self.beater is not None:
                self.beater.turning = Turning(
                    queues=tuple(consumer.app.amqp.queues.consume_from),
                    capacity=consumer.pool.num_processes,
                    busy=busy_here(),
                    reconnects=self.connected - 1,
                )

        return turned


def busy_here() -> int:
    """A batch is one message, and its coroutines take a slot each."""
    return max(len(state.reserved_requests), coroutines.slots_in_use())


def held_here() -> list[Held]:
    """The runs of this worker, read from another thread than the one that changes them."""
    requests: Any = state.active_requests
    return held_by(request for ref in tuple(requests.data) if (request := ref()))


def known_tasks(app: Any) -> list[str]:
    """The tasks whose jobs it can run; a plain task of the same name cannot."""
    return sorted(
        name for name, task in app.tasks.items() if getattr(task, "is_ledger_task", False)
    )


class Beater:
    """The thread that beats, from the first connection to the broker until the worker ends."""

    def __init__(self, name: str, tasks: Sequence[str]) -> None:
        self.name = name
        self.tasks = tasks
        self.turning = Turning()
        self.draining = False
        # Without a broker the loop cannot turn, and a restart would only end what runs.
        self.is_disconnected = False
        self._ending = False
        self._awake = threading.Event()
        self._thread = threading.Thread(target=self._work, name="heartbeat", daemon=True)
        self._reachable: bool | None = None
        self._relays = RelayWatch()
        self._renewer = Renewer(held_here)
        self._beats_at = 0.0
        self._failed = False

    def start(self) -> None:
        if not self._thread.is_alive():
            signals.worker_shutting_down.connect(self.drain)
            self._thread.start()

    def drain(self, **_: Any) -> None:
        """Called in a signal handler: only sets flags."""
        self.draining = True
        self._awake.set()

    def end(self) -> None:
        """Says goodbye, if the database answers in time; a row without it goes stale."""
        self._ending = True
        self._awake.set()
        self._thread.join(LAST_BEAT_WITHIN_S)

    def vitals(self) -> Vitals:
        return Vitals(
            name=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            release=getattr(settings, "TASKS_RELEASE", ""),
            queues=self.turning.queues,
            known_tasks=self.tasks,
            capacity=self.turning.capacity,
            busy=self.turning.busy,
            draining=self.draining,
            reconnects=self.turning.reconnects,
        )

    def _work(self) -> None:
        with bounded():
            while not self._ending:
                # Cleared first: a flag that is set during the beat makes the next one come at once.
                self._awake.clear()
                self._guarded(self._renew)
                if self.draining or self.is_disconnected or not self.turning.hangs:
                    pulse.give("alive")
                # A draining worker has no loop any more, but its runs are alive.
                if self._is_due and (self.draining or not self.turning.hangs):
                    self._guarded(self._beat)
                self._awake.wait(self._pause_s)
            self._say_goodbye()

    @property
    def _pause_s(self) -> float:
        """Until the next renewal or beat; a beat that waits for a loop that hangs looks again."""
        beats_in_s = self._beats_at - time.monotonic()
        return min(self._renewer.pause_s, beats_in_s if beats_in_s > 0 else TURN_S)

    def _guarded(self, part: Callable[[], None]) -> None:
        """Without this thread every run of the worker is taken away: nothing may end it."""
        try:
            part()
        except Exception:
            if not self._failed:
                log.exception("heartbeat_failed", worker=self.name)
            self._failed = True

    def _renew(self) -> None:
        """The leases of what runs here; before the beat, because more depends on it."""
        try:
            self._renewer.turn()
        except (DatabaseError, InterfaceError) as error:
            self._note_outage(error)

    @property
    def _is_due(self) -> bool:
        return self.draining or time.monotonic() >= self._beats_at

    def _beat(self) -> None:
        self._beats_at = time.monotonic() + BEAT_S - 0.1
        try:
            beat(self.vitals())
            # Who stops a whole stack stops its relays first; a worker that leaves is no witness.
            if not self.draining:
                self._relays.check()
            if self._reachable is None:
                forget_the_dead()
                announce_new_slots()
        except (DatabaseError, InterfaceError) as error:
            self._note_outage(error)
        else:
            self._note_success()

    def _note_outage(self, error: Exception) -> None:
        connection.close()
        if self._reachable is not False:
            log.error("heartbeat_lost_database", worker=self.name, error=str(error))
        self._reachable = False

    def _note_success(self) -> None:
        if self._reachable is False:
            log.info("heartbeat_found_database", worker=self.name)
        self._reachable = True
        pulse.give("ready")

    def _say_goodbye(self) -> None:
        try:
            stop(self.vitals())
        except (DatabaseError, InterfaceError) as error:
            log.warning("heartbeat_without_goodbye", worker=self.name, error=str(error))


# --- the row ------------------------------------------------------------------------------


def beat(worker: Vitals) -> None:
    """Write the whole row: it may have been pruned, or belong to a dead worker of that name."""
    execute(
        "INSERT INTO tasks_worker (name, host, pid, release, queues, known_tasks, capacity,"
        " busy, draining, reconnects, started_at, last_beat)"
        " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, clock_timestamp(), clock_timestamp())"
        " ON CONFLICT (name) DO UPDATE SET host = excluded.host, pid = excluded.pid,"
        " release = excluded.release, queues = excluded.queues,"
        " known_tasks = excluded.known_tasks, capacity = excluded.capacity,"
        " busy = excluded.busy, draining = excluded.draining, last_beat = excluded.last_beat,"
        " reconnects = excluded.reconnects,"
        " stopped_at = NULL, started_at = CASE"
        " WHEN (tasks_worker.host, tasks_worker.pid) = (excluded.host, excluded.pid)"
        " THEN tasks_worker.started_at ELSE excluded.started_at END",
        [
            worker.name, worker.host, worker.pid, worker.release, json.dumps(list(worker.queues)),
            json.dumps(list(worker.known_tasks)), worker.capacity, worker.busy, worker.draining,
            worker.reconnects,
        ],
    )  # fmt: skip


def stop(worker: Vitals) -> bool:
    """The worker ended in order. False when a successor has taken its name already."""
    return bool(
        execute(
            "UPDATE tasks_worker SET stopped_at = clock_timestamp(), draining = true, busy = 0"
            " WHERE name = %s AND host = %s AND pid = %s",
            [worker.name, worker.host, worker.pid],
        )
    )


def note_given_back(job_ids: Sequence[str]) -> None:
    """Which runs did not end before the drain deadline of this very process."""
    try:
        with bounded():
            execute(
                "UPDATE tasks_worker SET given_back = %s WHERE host = %s AND pid = %s",
                [json.dumps(list(job_ids)), socket.gethostname(), os.getpid()],
            )
    except (DatabaseError, InterfaceError) as error:
        log.warning("given_back_not_noted", error=str(error))


def forget_the_dead() -> int:
    return execute(
        "DELETE FROM tasks_worker WHERE last_beat < clock_timestamp() - %s * interval '1 second'",
        [FORGET_AFTER_S],
    )


def announce_new_slots() -> None:
    """A relay that sleeps learns that there is room."""
    if getattr(settings, "TASKS_LEDGER_NOTIFY", True):
        execute("SELECT pg_notify('tasks_due', '')", [])


def execute(sql: str, parameters: Sequence[Any]) -> int:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return int(cursor.rowcount)
