"""Ties the rows of docs/compatibility.md to the tests that prove them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parent.parent / "docs" / "compatibility.md"


def habit[F: Callable[..., Any]](*rows: str) -> Callable[[F], F]:
    """This test proves these rows of the table, named as in its first column."""

    def mark(test: F) -> F:
        test.habits = rows  # type: ignore[attr-defined]
        return test

    return mark


def rows_of_the_table() -> list[str]:
    lines = [line for line in TABLE.read_text().splitlines() if line.startswith("| `")]
    return [line.split("|")[1].strip().strip("`") for line in lines]
