"""``manage.py cancel``: cancel the unfinished jobs that match."""

from __future__ import annotations

import time
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from tasks import ledger, sql
from tasks.ledger import CancelledMany, Selection
from tasks.management.arguments import given_moment, whoever_types
from tasks.operate import BATCH, cancel_matching
from tasks.spelling import doubt
from tasks.states import Pausable

# Seconds between two tries, and until it gives up, when all that is left is locked.
PAUSE_S = 0.2
LOCKED_FOR_S = 30.0


class Command(BaseCommand):
    help = (
        "Cancels what waits, and asks what runs to stop, in batches, among the jobs accepted until"
        " now. Name at least a task, a queue, a tenant or an ordering key."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--task")
        parser.add_argument("--queue")
        parser.add_argument("--tenant", help="'' names the jobs without one")
        parser.add_argument("--ordering-key")
        parser.add_argument("--state", choices=["queued", "dispatched", "running"])
        parser.add_argument("--created-before", type=given_moment, metavar="TIME", help="ISO 8601")
        parser.add_argument("--reason", required=True, help="kept with each job")
        parser.add_argument("--actor", default=None, help="who cancels; by default, you")
        parser.add_argument("--dry-run", action="store_true", help="only count them")

    def handle(self, *args: Any, **options: Any) -> None:
        selection = selected(options)
        self.warn(Pausable.TASK, selection.task)
        self.warn(Pausable.QUEUE, selection.queue)
        if options["dry_run"]:
            self.stdout.write(f"Would cancel {jobs(ledger.count_selected(selection))}.")
            return
        actor = options["actor"] or whoever_types()
        done = self.cancel_all(selection, actor=actor, reason=options["reason"])
        self.stdout.write(f"{told(done)}.")

    def warn(self, kind: Pausable, name: str | None) -> None:
        """Jobs of an old release may have a name that is not known here any more."""
        odd = None if name is None else doubt(kind, name)
        if odd:
            self.stderr.write(odd)

    def cancel_all(self, selection: Selection, *, actor: str, reason: str) -> CancelledMany:
        done, moved_at = CancelledMany(), time.monotonic()
        while True:
            batch, more = cancel_matching(selection, actor=actor, reason=reason, batches=1)
            done += batch
            if not more:
                return done
            if batch.total:
                moved_at = time.monotonic()
            if batch.total == BATCH:
                self.stdout.write(f"{told(done)} ...")
            elif time.monotonic() - moved_at > LOCKED_FOR_S:
                raise CommandError(f"{told(done)}; the others are locked by open transactions.")
            else:
                time.sleep(PAUSE_S)


def selected(options: dict[str, Any]) -> Selection:
    names = ("task", "queue", "tenant", "ordering_key")
    named = {name: options[name] for name in names}
    if all(value is None for value in named.values()):
        raise CommandError("Name at least a task, a queue, a tenant or an ordering key.")
    return Selection(
        **named,
        state=options["state"],
        created_before=options["created_before"] or sql.now(),
    )


def told(done: CancelledMany) -> str:
    return f"Cancelled {jobs(done.cancelled)}, asked {done.asked:,} running to stop"


def jobs(number: int) -> str:
    return f"{number:,} job{'' if number == 1 else 's'}"
