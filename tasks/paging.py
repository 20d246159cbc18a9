"""Pages of rows with time-ordered ids, newest first. Nothing here counts a table.

A page starts at an id, so the last one costs what the first one costs. A filter that no index
serves would still read the whole table to find its third match; a ``Window`` ends that search
after a number of rows, and the next page goes on from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Model, QuerySet


@dataclass(frozen=True)
class Place:
    """A place between two ids: ``id <= at`` is older, ``id > at`` is newer. None is the top."""

    at: UUID | None = None
    towards_newer: bool = False


@dataclass(frozen=True)
class Window:
    """Look at no more than ``size`` rows of ``rows`` for one page."""

    rows: QuerySet[Any]
    size: int


@dataclass(frozen=True)
class Page[M: Model]:
    """``older`` and ``newer`` are places to go on from, None where the table ends.

    ``cut``: the window ended before the page was full.
    """

    rows: list[M]
    older: UUID | None
    newer: UUID | None
    cut: bool


def read_page[M: Model](
    rows: QuerySet[M], place: Place, *, size: int, window: Window | None = None
) -> Page[M]:
    """Up to ``size`` of ``rows`` on that side of ``place``."""
    if place.towards_newer and place.at is not None:
        return newer_page(rows, place.at, size, window)
    return older_page(rows, place.at, size, window)


def older_page[M: Model](
    rows: QuerySet[M], at: UUID | None, size: int, window: Window | None
) -> Page[M]:
    edge = older_edge(window, at) if window else None
    if at is not None:
        rows = rows.filter(pk__lte=at)
    if edge is not None:
        rows = rows.filter(pk__gt=edge)
    found = list(rows.order_by("-pk")[: size + 1])
    if len(found) > size:
        return Page(found[:size], older=found[size].pk, newer=at, cut=False)
    return Page(found, older=edge, newer=at, cut=edge is not None)


def newer_page[M: Model](rows: QuerySet[M], at: UUID, size: int, window: Window | None) -> Page[M]:
    edge = newer_edge(window, at) if window else None
    rows = rows.filter(pk__gt=at)
    if edge is not None:
        rows = rows.filter(pk__lte=edge)
    found = list(rows.order_by("pk")[: size + 1])
    page = found[size - 1 :: -1]
    if len(found) > size:
        return Page(page, older=at, newer=page[0].pk, cut=False)
    return Page(page, older=at, newer=edge, cut=edge is not None)


def older_edge(window: Window, at: UUID | None) -> UUID | None:
    """The first id beyond the window, None when it reaches the oldest row."""
    rows = window.rows if at is None else window.rows.filter(pk__lte=at)
    return rows.order_by("-pk").values_list("pk", flat=True)[window.size :].first()


def newer_edge(window: Window, at: UUID) -> UUID | None:
    """The last id of the window, None when it reaches the newest row."""
    rows = window.rows.filter(pk__gt=at).order_by("pk").values_list("pk", flat=True)
    return rows[window.size - 1 :].first()
