"""Jobs to break. Each has one effect on the world, and the witness counts it."""

from __future__ import annotations

import os
import signal
import time

from celery import shared_task

from devtools.drilled.reporting import Unavailable, reporting
from devtools.drilled.settings import DRILL
from tasks.run import current_run
from tasks.task import LedgerTask

# Only the poisonous job is meant to be given up: for the others a drill's repeated kills are
# bad luck, and bad luck three times would look like poison.
UNLUCKY = 50
CHUNK = 32 * 1024 * 1024


@shared_task(base=LedgerTask, queue=DRILL.name, api=True, max_crashes=UNLUCKY)
def bare(number: int, seconds: float) -> None:
    """An effect in the middle, as most people write it."""
    with reporting() as report:
        time.sleep(seconds / 2)
        report.effect()
        time.sleep(seconds / 2)


@shared_task(base=LedgerTask, queue=DRILL.name, api=True)
def dropped(number: int, seconds: float) -> None:
    """All of these are cancelled by the name of their task."""
    bare(number, seconds)


@shared_task(base=LedgerTask, queue=DRILL.name, api=True)
def dropped_late(number: int, seconds: float) -> None:
    """So are these, while others run."""
    bare(number, seconds)


@shared_task(base=LedgerTask, queue=DRILL.name, api=True, max_crashes=UNLUCKY)
def stepped(number: int, seconds: float) -> None:
    """The same effect as a step, under a key that the other side knows it by."""
    run = current_run()
    with reporting() as report:
        time.sleep(seconds / 2)
        run.step("effect", lambda: report.effect(run.downstream_key("effect")))
        time.sleep(seconds / 2)


@shared_task(base=LedgerTask, queue=DRILL.name, api=True, max_crashes=UNLUCKY)
def checkpointed(number: int, parts: int, seconds: float) -> None:
    """Long work in parts, which can stop between any two of them."""
    run = current_run()
    with reporting() as report:
        for part in range(run.last_checkpoint or 0, parts):
            run.check()
            time.sleep(seconds / parts)
            run.checkpoint(part + 1)
        run.step("effect", lambda: report.effect(run.downstream_key("effect")))


@shared_task(
    base=LedgerTask, queue=DRILL.name, api=True, autoretry_for=(Unavailable,), retry_backoff=1,
    retry_backoff_max=4, max_retries=50,
)  # fmt: skip
def calling(number: int, seconds: float) -> None:
    """Tries again, later and later, when the other side is unavailable."""
    with reporting() as report:
        time.sleep(seconds)
        report.effect(current_run().downstream_key("effect"))


@shared_task(base=LedgerTask, queue=DRILL.name, api=True)
def poisonous(number: int) -> None:
    """Kills its process, every time."""
    with reporting():
        os.kill(os.getpid(), signal.SIGKILL)


@shared_task(base=LedgerTask, queue=DRILL.name, api=True)
def sometimes_poisonous(number: int, seconds: float, kills: bool) -> None:
    """Some of these do, every time; the others are like any."""
    with reporting() as report:
        time.sleep(seconds)
        if kills:
            os.kill(os.getpid(), signal.SIGKILL)
        report.effect()


@shared_task(base=LedgerTask, queue=DRILL.name, api=True, max_crashes=UNLUCKY)
def hungry(number: int) -> None:
    """Eats memory until the kernel ends it; on its second run it knows better."""
    with reporting() as report:
        eaten = []
        while current_run().fence == 1:
            eaten.append(bytearray(os.urandom(4096)) * (CHUNK // 4096))
        report.effect()
