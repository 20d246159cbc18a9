"""``manage.py resume``: end a pause, of an operator or (of a downstream) of a job."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from tasks import limits, pauses
from tasks.management.arguments import whoever_types
from tasks.management.commands.pause import listing
from tasks.registry import suggestion
from tasks.states import Pausable
from tasks.wiring import topology

DOWNSTREAM = "downstream"


class Command(BaseCommand):
    help = (
        "Ends the pause of a queue, a task or a tenant: resume queue payments. Or that of a"
        " downstream, which a job asked for: resume downstream bank. Without arguments, lists what"
        " operators paused."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("kind", nargs="?", choices=[*map(str, Pausable), DOWNSTREAM])
        parser.add_argument("name", nargs="?")
        parser.add_argument("--actor", default=None, help="who resumes; by default, you")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["kind"] is None:
            self.stdout.write(listing())
            return
        if options["name"] is None:
            raise CommandError(f"Name the {options['kind']} to resume.")
        if options["kind"] == DOWNSTREAM:
            self.resume_downstream(options["name"])
            return
        kind, name = Pausable(options["kind"]), options["name"]
        if not pauses.resume(kind, name, actor=options["actor"] or whoever_types()):
            names = [paused.name for paused in pauses.listed() if paused.kind == kind]
            raise CommandError(f"The {kind} {name!r} is not paused{suggestion(name, names)}")
        self.stdout.write(f"Resumed the {kind} {name!r}.")

    def resume_downstream(self, name: str) -> None:
        if not limits.resume(f"{DOWNSTREAM}:{name}"):
            queues = topology().queues.values()
            names = [queue.downstream.name for queue in queues if queue.downstream]
            raise CommandError(f"No job has paused {name!r}{suggestion(name, names)}")
        self.stdout.write(f"Resumed the downstream {name!r}.")
