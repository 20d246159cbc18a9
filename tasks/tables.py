"""Rows as a table for a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns as wide as their widest cell; the last one ends where its text ends."""
    cells = [[str(cell) for cell in row] for row in (headings, *rows)]
    widths = [max(len(row[n]) for row in cells) for n in range(len(headings))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )
