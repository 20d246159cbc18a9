"""Ledger tasks whose process dies, freezes or is stopped; workers load them with ``-I``.

Each leaves the process that ran it in the table ``trace``, on a connection of its own, so that
no transaction of the body hides it.
"""

from __future__ import annotations

import os
import signal
import time

import psycopg
from celery import shared_task
from django.db import connection

from tasks.errors import Interrupted
from tasks.run import Step, current_run
from tasks.task import LedgerTask
from tests.processes import database_url


def leave_trace(note: str) -> None:
    with psycopg.connect(database_url(), autocommit=True) as session:
        session.execute("INSERT INTO trace (note, backend) VALUES (%s, %s)", [note, os.getpid()])


def begin(note: str) -> None:
    run = current_run()
    leave_trace(f"{note} resumes" if run.last_checkpoint else f"{note} begins")
    run.checkpoint({"note": note})


@shared_task(base=LedgerTask, name="s.slow")
def slow(note: str, seconds: float) -> None:
    leave_trace(f"{note} begins")
    if current_run().last_checkpoint:
        leave_trace(f"{note} resumes")
    current_run().checkpoint({"note": note})
    time.sleep(seconds)
    leave_trace(f"{note} ends")


@shared_task(base=LedgerTask, name="s.busy")
def busy(note: str, seconds: float) -> None:
    leave_trace(f"{note} begins")
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        sum(range(10_000))
    leave_trace(f"{note} ends")


@shared_task(base=LedgerTask, name="s.checking")
def checking(note: str, seconds: float) -> None:
    begin(note)
    ends_at = time.monotonic() + seconds
    try:
        while time.monotonic() < ends_at:
            current_run().check()
            time.sleep(0.05)
    except Interrupted as exc:
        leave_trace(f"{note} {type(exc).__name__}")
        raise
    leave_trace(f"{note} ends")


@shared_task(base=LedgerTask, name="s.stepping")
def stepping(note: str) -> list[str]:
    run = current_run()
    run.emit(1, "a")

    def one() -> str:
        leave_trace("one")
        return "one"

    def two(step: Step) -> str:
        if step.ambiguous:
            leave_trace("two is ambiguous")
            return "asked"
        leave_trace("two begins")
        os.kill(os.getpid(), signal.SIGKILL)
        return "never"

    results = [run.step("one", one), run.step("two", two)]
    run.emit(2, "b")
    return results


@shared_task(base=LedgerTask, name="s.locks_its_row", atomic=True)
def locks_its_row(note: str, seconds: float) -> None:
    current_run().progress(1, 2)
    leave_trace(f"{note} begins")
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        current_run().check()
        time.sleep(0.05)
    leave_trace(f"{note} ends")


@shared_task(base=LedgerTask, name="s.all_or_nothing", atomic=True)
def all_or_nothing(note: str, dies_first: bool = False, fails: bool = False) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO trace (note, backend) VALUES (%s, 0)", [note])
    if dies_first and current_run().fence == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if fails:
        raise ValueError("after the effect")
