"""Lets this release live through jobs and writes down every statement that it sends.

Only what has the same answer each time is played: ids and keys are values of the statements, and
on an empty database the numbers that the ledger gives are the same again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from itertools import count as numbers
from itertools import islice
from typing import Any

import psycopg
from django.core.management import call_command
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from devtools.release.kept import AFTER, APPS, BEFORE, Kept, Statement
from devtools.released.tasks import count
from tasks import dispatch, fleet, heartbeat, ledger
from tasks.dispatch import Slots
from tasks.enqueue import enqueue, enqueue_many, uuid7
from tasks.ledger import Claim, Dispatched, ErrorReport
from tasks.states import Failure
from tasks.topology import Queue
from tasks.wiring import topology

# Each statement is played in a transaction of its own.
SAVEPOINT = re.compile("(RELEASE |ROLLBACK TO )?SAVEPOINT ")
QUEUE, WORKER, RELEASE = "default", "previous@host", "previous"
ERROR = ErrorReport.of("builtins.ConnectionError", "not today", "Traceback ...")


def recording() -> Kept:
    """Of an empty, migrated database. What it did stays there."""
    migrations = applied()
    return Kept(migrations, "\n".join(schema_of(migrations)), list(statements()))


def applied() -> list[tuple[str, str]]:
    rows = MigrationRecorder(connection).migration_qs.order_by("id").values_list("app", "name")
    return [(app, name) for app, name in rows if app in APPS]


def schema_of(migrations: Sequence[tuple[str, str]]) -> Iterator[str]:
    """The SQL that made the tables of the engine."""
    for app, name in migrations:
        if app == "tasks":
            text = StringIO()
            call_command("sqlmigrate", app, name, stdout=text)
            yield f"-- {app}.{name}\n{text.getvalue()}"


def statements() -> Iterator[Statement]:
    jobs, life = Statements(), Life()
    for phase, parts in ((BEFORE, life.before()), (AFTER, life.after())):
        for by in parts:
            with jobs.of(phase, by.__name__):
                by()
    yield from jobs.seen


class Life:
    """What the processes of a release do, in order; after the migration they go on."""

    def __init__(self) -> None:
        self.relay_id = uuid7()
        self.numbers = numbers()
        self.sent: Iterator[Dispatched] = iter(())
        self.runs: list[Claim] = []

    def before(self) -> Iterator[Any]:
        yield from (self.beat, self.accept, self.accept_many, self.dispatch, self.claim)
        yield from (self.succeed, self.emit)

    def after(self) -> Iterator[Any]:
        yield from (self.renew, self.checkpoint, self.emit, self.step, self.retry, self.accept)
        yield from (self.accept_many, self.claim, self.give_back, self.fail, self.hold_unknown)
        yield from (self.undispatch, self.dispatch, self.undispatch, self.cancel, self.beat)
        yield self.goodbye

    # --- the relay and whoever enqueues ---------------------------------------------------

    def beat(self) -> None:
        heartbeat.beat(
            heartbeat.Vitals(
                name=WORKER, host="host", pid=7, release=RELEASE, queues=[QUEUE],
                known_tasks=[count.name], capacity=4, busy=0, draining=False,
            )
        )  # fmt: skip
        fleet.relay_beats(self.relay_id, "host", 8, RELEASE)

    def accept(self) -> None:
        """Two new ones and a repeat; the second is cancelled in the end."""
        for number in (next(self.numbers), 0):
            enqueue(count, {"number": number})
        self.job_id = enqueue(count, {"number": next(self.numbers)}).job_id

    def accept_many(self) -> None:
        enqueue_many(count, [{"number": number} for number in (0, *islice(self.numbers, 4))])

    def dispatch(self) -> None:
        jobs = dispatch.dispatch(topology(), Queue(QUEUE), Slots(capacity=3, free=3))
        self.sent = iter(jobs)

    def undispatch(self) -> None:
        ledger.undispatch(list(self.sent))

    def cancel(self) -> None:
        ledger.cancel(self.job_id, actor="previous", reason="rehearsed")

    # --- the worker -----------------------------------------------------------------------

    def claim(self) -> None:
        for job in islice(self.sent, 2):
            run = ledger.claim(job.id, job.dispatch_no, worker=WORKER, release=RELEASE, lease_s=600)
            assert run is not None
            self.runs.append(run)

    def succeed(self) -> None:
        run = self.runs.pop()
        assert ledger.succeed(run.id, run.fence, result="1")

    def renew(self) -> None:
        assert ledger.renew([(run.id, run.dispatch_no, 600.0) for run in self.runs])

    def checkpoint(self) -> None:
        run = self.runs[0]
        assert ledger.checkpoint(run.id, run.fence, '{"at": 3}')
        assert ledger.progress(run.id, run.fence, '{"done": 3}')

    def emit(self) -> None:
        run = self.runs[0]
        assert ledger.emit(run.id, run.fence, len(self.runs), '"said"')

    def step(self) -> None:
        run = self.runs[0]
        assert ledger.begin_step(run.id, run.fence, "charge")
        assert ledger.end_step(run.id, run.fence, "charge", '"done"')

    def retry(self) -> None:
        run = self.runs.pop(0)
        assert ledger.retry(run.id, run.fence, delay_s=0, error=ERROR)

    def give_back(self) -> None:
        run = self.runs.pop(0)
        assert ledger.give_back(run.id, run.fence)

    def fail(self) -> None:
        run = self.runs.pop(0)
        assert ledger.fail(run.id, run.fence, failure=Failure.ERROR, error=ERROR)

    def hold_unknown(self) -> None:
        job = next(self.sent)
        assert ledger.hold_unknown(job.id, job.dispatch_no)

    def goodbye(self) -> None:
        heartbeat.stop(
            heartbeat.Vitals(
                name=WORKER, host="host", pid=7, release=RELEASE, queues=[QUEUE],
                known_tasks=[count.name], capacity=4, busy=0, draining=True,
            )
        )  # fmt: skip
        fleet.relay_leaves(self.relay_id)


class Statements:
    """All that Django's connection is told, with its values filled in."""

    def __init__(self) -> None:
        self.seen: list[Statement] = []

    @contextmanager
    def of(self, phase: str, by: str) -> Iterator[None]:
        def write_down(execute: Any, sql: str, values: Any, many: bool, context: Any) -> Any:
            answer = execute(sql, values, many, context)
            if not SAVEPOINT.match(sql):
                rows = context["cursor"].rowcount
                self.seen.append(Statement(phase, by, rows, filled_in(sql, values)))
            return answer

        with connection.execute_wrapper(write_down):
            yield


def filled_in(sql: str, values: Any) -> str:
    text = psycopg.ClientCursor(connection.connection).mogrify(sql, values or None)
    assert "\n-- " not in text
    return text
