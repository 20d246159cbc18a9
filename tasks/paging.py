"""Pages of jobs by ``seq``, their order of acceptance, newest first. Nothing here counts a table.

Not by id: callers may bring their own, and a random one would stay on top for ever. A replayed
job is accepted anew and comes back to the top.

A page starts at a ``seq``, so the last one costs what the first one costs. A filter that no
index serves would still read the whole table to find its third match; a ``Window`` ends that
search after a number of rows, and the next page goes on from there.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import QuerySet

from tasks.models import Job


@dataclass(frozen=True)
class Place:
    """A place between two jobs: ``seq <= at`` is older, ``seq > at`` is newer. None is the top."""

    at: int | None = None
    towards_newer: bool = False


@dataclass(frozen=True)
class Window:
    """Look at no more than ``size`` rows of ``rows`` for one page."""

    rows: QuerySet[Job]
    size: int


@dataclass(frozen=True)
class Page:
    """``older`` and ``newer`` are places to go on from, None where the table ends.

    ``cut``: the window ended before the page was full.
    """

    rows: list[Job]
    older: int | None
    newer: int | None
    cut: bool


def read_page(
    rows: QuerySet[Job], place: Place, *, size: int, window: Window | None = None
) -> Page:
    """Up to ``size`` of ``rows`` on that side of ``place``."""
    if place.towards_newer and place.at is not None:
        return newer_page(rows, place.at, size, window)
    return older_page(rows, place.at, size, window)


def older_page(rows: QuerySet[Job], at: int | None, size: int, window: Window | None) -> Page:
    edge = older_edge(window, at) if window else None
    if at is not None:
        rows = rows.filter(seq__lte=at)
    if edge is not None:
        rows = rows.filter(seq__gt=edge)
    found = list(rows.order_by("-seq")[: size + 1])
    if len(found) > size:
        return Page(found[:size], older=found[size].seq, newer=at, cut=False)
    return Page(found, older=edge, newer=at, cut=edge is not None)


def newer_page(rows: QuerySet[Job], at: int, size: int, window: Window | None) -> Page:
    edge = newer_edge(window, at) if window else None
    rows = rows.filter(seq__gt=at)
    if edge is not None:
        rows = rows.filter(seq__lte=edge)
    found = list(rows.order_by("seq")[: size + 1])
    page = found[size - 1 :: -1]
    if len(found) > size:
        return Page(page, older=at, newer=page[0].seq, cut=False)
    return Page(page, older=at, newer=edge, cut=edge is not None)


def older_edge(window: Window, at: int | None) -> int | None:
    """The first job beyond the window, None when it reaches the oldest row."""
    rows = window.rows if at is None else window.rows.filter(seq__lte=at)
    return rows.order_by("-seq").values_list("seq", flat=True)[window.size :].first()


def newer_edge(window: Window, at: int) -> int | None:
    """The last job of the window, None when it reaches the newest row."""
    rows = window.rows.filter(seq__gt=at).order_by("seq").values_list("seq", flat=True)
    return rows[window.size - 1 :].first()
