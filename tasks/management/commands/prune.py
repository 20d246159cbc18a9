"""``manage.py prune``: delete what is past its retention now, as the relays do all the time."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from tasks.prune import Prunable, prunable, retention_of, walk
from tasks.tables import table

DAY_S = 86_400


class Command(BaseCommand):
    help = (
        "Deletes finished jobs whose queue's retention is over, with their keys, attempts, steps,"
        " outputs and actions. Dead letters stay. The relays do the same, a little at a time."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="only say what would go")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["dry_run"]:
            self.stdout.write(listed(prunable()))
            return
        pruned = sum(batch.pruned for batch in walk())
        self.stdout.write(f"{counted(pruned)} deleted.")


def listed(found: list[Prunable]) -> str:
    if not found:
        return "Nothing is past its retention."
    rows = [
        (one.queue, days(retention_of(one.queue)), f"{one.jobs:,}", days(one.oldest_age_s))
        for one in found
    ]
    lines = table(("QUEUE", "RETENTION", "JOBS", "OLDEST ENDED"), rows)
    return f"{lines}\n{counted(sum(one.jobs for one in found))} would be deleted."


def days(seconds: float) -> str:
    return f"{seconds / DAY_S:.1f} d"


def counted(jobs: int) -> str:
    return f"{jobs:,} job{'' if jobs == 1 else 's'}"
