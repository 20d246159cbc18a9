"""``manage.py ledger_environment``: whose the ledger is, and how a copy changes hands."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from tasks.environment import GUARD, owner, set_owner


class Command(BaseCommand):
    help = "Shows which environment the ledger belongs to; --set NAME gives it to another one."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--set", metavar="NAME", help="the environment it shall belong to")

    def handle(self, *args: Any, **options: Any) -> None:
        GUARD.satisfied = True  # whoever asks whose it is may look
        former = owner() or "nobody"
        if options["set"]:
            set_owner(options["set"])
            self.stdout.write(f"It belonged to {former} and belongs to {options['set']} now.")
        else:
            self.stdout.write(f"It belongs to {former}.")
