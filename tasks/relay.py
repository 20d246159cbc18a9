"""The relay: moves due jobs from the ledger to the broker. Any number may run.

``run_once`` does what there is to do and returns how much that was; ``run`` only loops and
sleeps. A NOTIFY wakes it early, the poll finds everything anyway.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress

import structlog
from celery import Celery
from django.db import Error, connection
from psycopg.errors import LockNotAvailable

from tasks import breaker, dispatch, fleet, grouping, holds, ledger, pace, pauses, pulse
from tasks.admission import Sampler
from tasks.dispatch import BATCH, Slots
from tasks.enqueue import uuid7
from tasks.listen import Listener
from tasks.order import Orders
from tasks.pace import Pace
from tasks.prune import Pruner
from tasks.publish import Publisher
from tasks.rescue import Rescuer
from tasks.topology import Queue
from tasks.turns import Rounds
from tasks.wake import LOOKS_AGAIN_AFTER_S
from tasks.wiring import release, topology

log = structlog.get_logger(__name__)

# Seconds between two looks when nobody wakes us: the truth behind the hint.
IDLE_POLL_S = 1.0
# Seconds between two looks while jobs wait for a free slot.
BUSY_POLL_S = 0.02
# Seconds between two rounds of staging, ending holds, expiring and looking for lost messages.
HOUSEKEEPING_EVERY_S = 1.0
# Seconds between two signs of life; three missed ones and the relay counts as gone.
BEAT_EVERY_S = 5.0
PAUSES_S = (0.5, 1.0, 2.0, 5.0)  # while the database is away
FAILURE_PAUSE_S = 1.0  # after an error of ours, which the next turn may meet again


Lane = tuple[str, str]


def in_turn(lanes: Sequence[Lane], passes: int) -> Iterator[tuple[str, str, float]]:
    """Each lane with the part of its queue's room that it may take, each time in another order.

    Queues may share a downstream, lanes share a window: whoever came first would take it all.
    """
    of_queue: defaultdict[str, list[str]] = defaultdict(list)
    for queue, lane in lanes:
        of_queue[queue].append(lane)
    for queue in rotated(list(of_queue), passes):
        names = rotated(of_queue[queue], passes)
        for number, lane in enumerate(names):
            yield queue, lane, 1 / (len(names) - number)


def rotated(names: list[str], by: int) -> list[str]:
    at = by % len(names) if names else 0
    return names[at:] + names[:at]


class Relay:
    def __init__(self, app: Celery) -> None:
        self.id = uuid7()
        self.publisher = Publisher(app)
        self.listener = Listener()
        self.stopping = threading.Event()
        self.sleeping = False
        self.dozes_until = 0.0
        self.beat_at = self.housekeeping_at = 0.0
        self.rescuer = Rescuer()
        self.sampler = Sampler()
        self.pruner = Pruner()
        self.watches_since = time.monotonic()
        self.slots: dict[str, Slots] = {}
        self.paces: defaultdict[str, Pace] = defaultdict(Pace)
        self.means: defaultdict[str, dict[str, float]] = defaultdict(dict)
        self.passes = 0
        self.rounds: defaultdict[Lane, Rounds] = defaultdict(Rounds)
        self.orders = Orders()
        self.keeper = pauses.Keeper()
        self.stopped: frozenset[str] = frozenset()
        self.blocked = False
        self.failures_said: set[str] = set()

    # --- one pass ---------------------------------------------------------------------

    def run_once(self) -> int:
        """Dispatch what may go now, then tidy up; the number of jobs that were moved.

        In this order, because whoever woke us waits for the dispatch.
        """
        self.beat()
        self.slots = self.slots or fleet.slots()
        sent = 0
        if self.publisher.is_reachable():
            self.orders.free()
            if not self.passes:
                self.measure()
            self.passes += 1
            lanes = in_turn(ledger.lanes_with_due_jobs(), self.passes)
            sent = sum(self.dispatch_or_say(*lane) for lane in lanes)
        self.pruner.run()
        return sent + self.housekeeping()

    def dispatch_or_say(self, name: str, lane: str, share: float) -> int:
        """One queue that cannot be served must not stop the others."""
        try:
            return self.dispatch(name, lane, share)
        except Exception as exc:
            if is_lock_timeout(exc):
                log.warning("dispatch_waits_for_lock", queue=name)
                return 0
            if isinstance(exc, Error):
                raise
            log.exception("dispatch_failed", queue=name)
            return 0

    def dispatch(self, name: str, lane: str, share: float = 1.0) -> int:
        if pauses.is_queue_paused(name) or topology().queue(name).lock_name in self.stopped:
            return 0
        queue, slots = topology().queue(name), self.slots.get(name, Slots())
        at_most = 1 if self.publisher.is_doubtful else BATCH
        own = self.paces[name]
        jobs = dispatch.dispatch(
            topology(),
            queue,
            slots,
            lane=lane,
            paused_tasks=pauses.paused_tasks(),
            share=share,
            rounds=self.rounds[name, lane],
            per_s=own.per_s,
            per_message=grouping.largest(queue, self.means.get(name, {})),
            at_most=at_most,
        )
        own.took(len(jobs), time.monotonic())
        self.blocked = self.blocked or (bool(slots.capacity) and len(jobs) < at_most)
        if jobs:
            self.orders.sent(jobs)
        means = self.means.get(name, {})
        return self.publish(
            queue, grouping.grouped(jobs, lambda task: grouping.size(queue, task, means))
        )

    def publish(self, queue: Queue, groups: grouping.Groups) -> int:
        """``groups``: of each, one message."""
        jobs = [job for group in groups for job in group]
        if not jobs:
            return 0
        if self.publisher.publish(queue, groups):
            return len(jobs)
        ledger.undispatch(jobs)
        return 0

    # --- now and then -----------------------------------------------------------------

    def beat(self) -> None:
        now = time.monotonic()
        if now < self.beat_at:
            return
        fleet.relay_beats(self.id, socket.gethostname(), os.getpid(), release())
        pulse.give("ready")
        self.beat_at = now + BEAT_EVERY_S

    def housekeeping(self) -> int:
        """Everything that may be up to a second late; how many jobs it made due."""
        self.sampler.run()
        now = time.monotonic()
        if now < self.housekeeping_at:
            return 0
        self.slots = fleet.slots()
        if any(own.untold for own in self.paces.values()):
            self.measure()
        pace.tell(self.paces)
        made_due = ledger.stage_due(BATCH * 5) + holds.release(BATCH * 5) + self.orders.sweep()
        made_due += self.keeper.keep(BATCH * 5)
        self.stopped = breaker.watch()
        made_due += self.rescuer.rescue(BATCH, watched_s=now - self.watches_since)
        for job_id, queue in ledger.expire(BATCH * 5):
            log.warning("job_expired", job_id=str(job_id), queue=queue)
        holds.give_up(BATCH)
        if self.publisher.is_reachable():
            for name, slots in self.slots.items():
                self.send_again(name, slots)
        self.housekeeping_at = now + out_of_step(HOUSEKEEPING_EVERY_S)
        return made_due

    def measure(self) -> None:
        """How long the jobs of queues with batches take. What has not run lately keeps its mean."""
        names = [name for name, queue in topology().queues.items() if queue.batch > 1]
        if names:
            for name, means in grouping.measured(names).items():
                self.means[name].update(means)

    def send_again(self, name: str, slots: Slots) -> None:
        queue = topology().queue(name)
        jobs = dispatch.dispatch_again(queue, slots)
        if jobs:
            log.warning("messages_lost", queue=name, jobs=len(jobs))
            self.publish(queue, [[job] for job in jobs])

    # --- the loop ---------------------------------------------------------------------

    def run(self) -> None:
        """Until ``stop``. An outage of the database is logged once and waited out.

        Any other error is one of ours. It may concern one job or one queue, and all the others
        need the relay.
        """
        log.info("relay_started", relay=str(self.id))
        failures = 0
        while not self.stopping.is_set():
            pulse.give("alive")
            try:
                self.turn()
            except Exception as exc:
                if not isinstance(exc, Error) or is_lock_timeout(exc):
                    self.fail(exc)
                    continue
                if not failures:
                    log.error("ledger_away", error=str(exc))
                self.reconnect_after(PAUSES_S[min(failures, len(PAUSES_S) - 1)])
                failures += 1
            else:
                if failures:
                    log.warning("ledger_back")
                failures = 0
        self.leave()

    def fail(self, exc: Exception) -> None:
        """Say it once per kind, and go on after a pause."""
        kind = type(exc).__qualname__
        if kind not in self.failures_said:
            log.error("relay_failed", exc_info=exc)
        self.failures_said.add(kind)
        self.stopping.wait(FAILURE_PAUSE_S)

    def turn(self) -> None:
        self.blocked = False
        if self.run_once():
            self.set_sleeping(False)
        elif self.blocked or self.pruner.is_behind:
            self.set_sleeping(False)
            self.stopping.wait(BUSY_POLL_S)
        elif not self.sleeping:
            # Said first, then looked once more: who enqueues after that will wake us.
            self.set_sleeping(True)
        elif self.listener.wait(self.sleeps_s()):
            self.slots = fleet.slots()

    def sleeps_s(self) -> float:
        """At first a moment: an insert that was under way has not seen that we sleep."""
        dozes_s = self.dozes_until - time.monotonic()
        return dozes_s if dozes_s > 0 else out_of_step(IDLE_POLL_S)

    def set_sleeping(self, sleeping: bool) -> None:
        if sleeping != self.sleeping:
            fleet.relay_sleeps(self.id, sleeping)
            self.sleeping = sleeping
            self.dozes_until = time.monotonic() + LOOKS_AGAIN_AFTER_S

    def reconnect_after(self, pause_s: float) -> None:
        self.listener.close()
        with suppress(Error):
            connection.close()
        self.sleeping = False
        self.beat_at = self.housekeeping_at = 0.0
        # Those who renew were cut off as well: they get the time to come back.
        self.watches_since = time.monotonic()
        self.stopping.wait(pause_s)

    def stop(self) -> None:
        self.stopping.set()

    def leave(self) -> None:
        """Say goodbye, so that nobody waits for a beat."""
        with suppress(Error):
            fleet.relay_leaves(self.id)
        self.listener.close()
        self.publisher.close()
        log.info("relay_stopped", relay=str(self.id))


def out_of_step(seconds: float) -> float:
    """Up to as many, at random. Workers ask Redis once a second: in step with them, a job that only
    one of them knows would be sent to the same wrong one again and again."""
    return seconds * random.uniform(0.5, 1.0)  # noqa: S311  (no secret)


def is_lock_timeout(exc: Exception) -> bool:
    """The database is there, somebody only keeps a lock."""
    return isinstance(exc.__cause__, LockNotAvailable)
