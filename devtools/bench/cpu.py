"""CPU seconds and memory of process trees, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def seconds_of_trees(roots: Iterable[int]) -> float:
    """What these processes and all their children have used, the dead ones included."""
    return sum(_tree(pid) for pid in roots)


def megabytes_of_trees(roots: Iterable[int]) -> float:
    """Resident memory of these processes and all their children; shared pages count each time."""
    return sum(map(_resident_tree, roots)) / 1e6


def parse_stat(text: str) -> float:
    """User and system time of a process and of the children it has buried, in seconds.

    The name in parentheses may hold spaces and parentheses itself.
    """
    fields = text.rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS


def children_of(pid: int) -> list[int]:
    """Empty for a process that is gone."""
    try:
        lists = [thread / "children" for thread in Path(f"/proc/{pid}/task").iterdir()]
        return [int(child) for listed in lists for child in listed.read_text().split()]
    except OSError:
        return []


def _tree(pid: int) -> float:
    try:
        own = parse_stat(Path(f"/proc/{pid}/stat").read_text())
    except OSError:  # it ended meanwhile; its parent has its time by now
        return 0.0
    return own + sum(map(_tree, children_of(pid)))


def _resident_tree(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * PAGE_BYTES + sum(map(_resident_tree, children_of(pid)))
