"""Stops a worker in three steps: take nothing new, let runs end, give the rest back.

TERM (or INT) starts it: Celery stops consuming, runs go on. At the drain deadline of the queue
``check()`` raises Draining in what still runs. A second later the worker sends itself QUIT:
Celery raises SystemExit in the bodies, and what did not finish is given back with its
checkpoint, at no cost. A second TERM does not wait for the deadline.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import structlog
from celery import Celery, signals

from tasks import heartbeat
from tasks.board import BOARD
from tasks.topology import DRAIN_S
from tasks.wiring import topology

log = structlog.get_logger(__name__)

# Seconds between Draining and SystemExit, for bodies that look with check().
COOPERATION_S = 1.0


def install(app: Celery) -> None:
    """Workers of this app drain."""

    def on_stop(how: str, **_: Any) -> None:
        if how != "Warm":
            BOARD.drain_at(time.monotonic())
            return
        hurry = begin(drain_s(tuple(app.amqp.queues.consume_from)))
        signal.signal(signal.SIGTERM, lambda *_: hurry())

    signals.worker_shutting_down.connect(on_stop, weak=False, dispatch_uid=f"{__name__}:{id(app)}")


def drain_s(queues: Sequence[str]) -> float:
    """The longest of its queues: the grace period of the container is made for that."""
    return max((float(topology().queue(name).drain_s) for name in queues), default=float(DRAIN_S))


def begin(seconds: float) -> Callable[[], None]:
    """Called in a signal handler. What it returns ends the wait."""
    hurry = threading.Event()
    BOARD.drain_at(time.monotonic() + seconds)
    threading.Thread(target=end, args=(seconds, hurry), name="drain", daemon=True).start()
    return hurry.set


def end(seconds: float, hurry: threading.Event) -> None:
    """Wait for the deadline; the process is gone before it when its runs have ended."""
    hurry.wait(seconds)
    BOARD.drain_at(time.monotonic())
    unfinished = [str(run.job_id) for run in heartbeat.held_here()]
    log.warning("drain_deadline", hurried=hurry.is_set(), given_back=unfinished)
    if unfinished:
        threading.Thread(target=heartbeat.note_given_back, args=(unfinished,), daemon=True).start()
    time.sleep(COOPERATION_S)
    os.kill(os.getpid(), signal.SIGQUIT)
