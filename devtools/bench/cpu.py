"""CPU seconds of process trees, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def seconds_of_trees(roots: Iterable[int]) -> float:
    """What these processes and all their children have used, the dead ones included."""
    return sum(_tree(pid) for pid in roots)


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
