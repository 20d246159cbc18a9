"""Tasks that the tests of the HTTP interface enqueue; none of them is ever run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any

from celery import shared_task

from tasks.task import LedgerTask


@dataclass(frozen=True)
class Seat:
    row: int
    note: str = ""


@shared_task(base=LedgerTask, name="published.capture", api=True, sensitive=("card",))
def capture(order_id: int, card: str = "", note: str = "") -> None:
    """Needs a key from the caller."""


@shared_task(base=LedgerTask, name="published.keep", api=True)
def keep(**anything: Any) -> None:
    """Takes whatever JSON can hold."""


@shared_task(base=LedgerTask, name="published.remind", api=True, key="remind:{order_id}")
def remind(order_id: int, tone: str = "kind") -> None:
    """Makes its key from the payload."""


@shared_task(base=LedgerTask, name="published.click", api=True, dedupe_window=60)
def click(button: str) -> None:
    """One job per content and minute."""


@shared_task(base=LedgerTask, name="published.book", api=True, queue="bulk", sensitive=("pin",))
def book(day: date, seats: list[Seat], pin: str = "0000") -> None:
    """Books seats.

    Its payload has a schema with definitions.
    """


@shared_task(base=LedgerTask, name="internal.purge")
def purge(tenant: str) -> None:
    """Not published."""
