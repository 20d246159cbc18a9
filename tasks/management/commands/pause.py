"""``manage.py pause``: keep a queue, a task or a tenant from running."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from tasks import pauses, sql
from tasks.management.arguments import given_duration, given_moment, whoever_types
from tasks.pauses import Paused
from tasks.spelling import doubt
from tasks.states import Pausable
from tasks.tables import table

COLUMNS = ("KIND", "NAME", "CLOSED", "SINCE", "UNTIL", "BY", "REASON")


class Command(BaseCommand):
    help = (
        "Pauses a queue, a task or a tenant: pause queue payments --reason migration --for 2h."
        " Nothing of it starts any more; what runs is left alone. Without arguments, lists what is"
        " paused."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("kind", nargs="?", choices=list(map(str, Pausable)))
        parser.add_argument("name", nargs="?", help="'' is the tenant of jobs without one")
        parser.add_argument("--reason", default="", help="is shown to who waits")
        end = parser.add_mutually_exclusive_group()
        end.add_argument("--until", type=given_moment, metavar="TIME", help="ISO 8601")
        end.add_argument("--for", type=given_duration, metavar="TIME", help="90s, 30m, 2h, 1d")
        parser.add_argument("--closed", action="store_true", help="of a queue: refuse new jobs too")
        parser.add_argument("--actor", default=None, help="who pauses; by default, you")
        parser.add_argument("--force", action="store_true", help="a name that nobody knows, too")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["kind"] is None:
            self.stdout.write(listing())
            return
        if options["name"] is None:
            raise CommandError(f"Name the {options['kind']} to pause.")
        kind, name = Pausable(options["kind"]), options["name"]
        check(kind, name, closed=options["closed"], force=options["force"])
        is_new = pauses.pause(
            kind, name, actor=options["actor"] or whoever_types(), reason=options["reason"],
            until=end_of(options), closed=options["closed"],
        )  # fmt: skip
        again = "" if is_new else "; it was before, and has this reason and end now"
        self.stdout.write(f"Paused the {kind} {name!r}{again}.")


def check(kind: Pausable, name: str, *, closed: bool, force: bool) -> None:
    if closed and kind != Pausable.QUEUE:
        raise CommandError("Only a queue can be closed.")
    if len(name) > 255 or "\x00" in name:
        raise CommandError("A name has at most 255 characters.")
    odd = doubt(kind, name)
    if odd and not force:
        raise CommandError(f"{odd} Nothing was paused; --force pauses it all the same.")


def end_of(options: dict[str, Any]) -> datetime | None:
    until: datetime | None = options["until"]
    if options["for"] is not None:
        until = sql.now() + options["for"]
    if not pauses.still_ahead(until):
        raise CommandError("That time is over.")
    return until


def listing() -> str:
    rows = [row(paused) for paused in pauses.listed()]
    return table(COLUMNS, rows) if rows else "Nothing is paused."


def row(paused: Paused) -> tuple[str, ...]:
    return (
        paused.kind, paused.name or "''", "yes" if paused.closed else "no",
        f"{paused.paused_at:%Y-%m-%d %H:%M:%S %Z}",
        f"{paused.until:%Y-%m-%d %H:%M:%S %Z}" if paused.until else "resumed",
        paused.actor, paused.reason,
    )  # fmt: skip
