"""``manage.py relay``: moves due jobs from the ledger to the broker."""

import signal
from typing import Any

from celery import current_app
from django.core.management.base import BaseCommand

from tasks.environment import refuse_foreign_ledger
from tasks.relay import Relay


class Command(BaseCommand):
    help = "Move due jobs from the ledger to the broker. Any number may run; TERM stops it."

    def handle(self, *args: Any, **options: Any) -> None:
        refuse_foreign_ledger()
        relay = Relay(current_app)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: relay.stop())
        relay.run()
