"""Reads orders from a CSV file and says, by row and column, what is wrong with it."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

COLUMNS = ("order_id", "amount_cents", "card")
# The demo is a rehearsal that a person waits for.
MOST_ORDERS = 10_000
WHOLE_NUMBER = re.compile(r"-?[0-9]{1,15}")
CARD = re.compile(r"[0-9]{12,19}")


class BadFile(Exception):
    """The message is for the person who brought the file."""


@dataclass(frozen=True)
class Order:
    order_id: int
    amount_cents: int
    card: str

    @property
    def key(self) -> str:
        """The name of the intent: the same as the task's own template makes."""
        return f"capture:{self.order_id}"


def read_orders(path: Path) -> list[Order]:
    """Every order once. The same line twice is one order; raises BadFile."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return list(_distinct(path, _numbered(path, csv.DictReader(file))))
    except OSError as error:
        raise BadFile(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadFile(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    except csv.Error as error:
        raise BadFile(f"{path}: not CSV: {error}") from error


def _numbered(path: Path, rows: csv.DictReader[str]) -> Iterator[tuple[str, Order]]:
    """Each order with the place to name in an error."""
    missing = [column for column in COLUMNS if column not in (rows.fieldnames or ())]
    if missing:
        raise BadFile(
            f"{path}, row 1: no column {', '.join(missing)};"
            f" the first row must be {','.join(COLUMNS)}"
        )
    for row in rows:
        place = f"{path}, row {rows.line_num}"
        if None in row:
            raise BadFile(f"{place}: more values than columns")
        yield place, _order(place, row)


def _order(place: str, row: dict[str, str | None]) -> Order:
    order_id = _number(place, "order_id", row["order_id"])
    if order_id < 1:
        raise BadFile(f"{place}, column order_id: {order_id} is not 1 or more")
    card = (row["card"] or "").strip()
    if not CARD.fullmatch(card):
        # The value stays out of the message: it may be a real card.
        raise BadFile(f"{place}, column card: not 12 to 19 digits")
    return Order(order_id, _number(place, "amount_cents", row["amount_cents"]), card)


def _number(place: str, column: str, text: str | None) -> int:
    value = (text or "").strip()
    if not WHOLE_NUMBER.fullmatch(value):
        shown = repr(value[:40]) if value else "empty,"
        raise BadFile(f"{place}, column {column}: {shown} is not a whole number")
    return int(value)


def _distinct(path: Path, numbered: Iterator[tuple[str, Order]]) -> Iterator[Order]:
    seen: dict[int, tuple[str, Order]] = {}
    for place, order in numbered:
        before, known = seen.setdefault(order.order_id, (place, order))
        if known != order:
            column = "amount_cents" if known.amount_cents != order.amount_cents else "card"
            raise BadFile(
                f"{place}, column {column}: order {order.order_id} differs from"
                f" {before.rpartition(', ')[2]}"
            )
        if before == place:
            yield order
        if len(seen) > MOST_ORDERS:
            raise BadFile(f"{path}: more than {MOST_ORDERS:,} orders")
    if not seen:
        raise BadFile(f"{path}: no orders")
