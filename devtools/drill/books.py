"""What the witness wrote down, and what follows from it: overlaps, deaths, effects done twice.

Nothing here knows the ledger. Times are the witness's own clock, in seconds.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

DIED = "died"  # its connection broke before it said how it ended
UNAVAILABLE = "Unavailable"  # the witness refused its effect, and the body raised that


@dataclass
class Run:
    """One run of a job, from its first word until it ended or its process was gone."""

    number: int
    job: str
    task: str
    pid: int
    release: str
    resumed: bool
    began: float
    ended: float | None = None
    how: str = ""

    @property
    def died(self) -> bool:
        return self.how == DIED

    @property
    def was_refused(self) -> bool:
        return self.how == UNAVAILABLE


@dataclass(frozen=True)
class Effect:
    """Something done to the world. ``key``: what the caller named it; "" is no name."""

    job: str
    run: int
    key: str
    at: float


@dataclass
class Books:
    """Threads of the witness share it; each method is one step."""

    runs: list[Run] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    repeats: int = 0
    _keys: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, job: str, task: str, pid: int, release: str, resumed: bool) -> Run:
        with self._lock:
            run = Run(len(self.runs), job, task, pid, release, resumed, time.time())
            self.runs.append(run)
            return run

    def effect(self, run: Run, key: str) -> bool:
        """False: an effect of that key was there before, and nothing happens."""
        with self._lock:
            if key and key in self._keys:
                self.repeats += 1
                return False
            self._keys.add(key)
            self.effects.append(Effect(run.job, run.number, key, time.time()))
            return True

    def end(self, run: Run, how: str) -> None:
        """The first word counts."""
        with self._lock:
            if run.ended is None:
                run.ended, run.how = time.time(), how

    def page(self) -> dict[str, Any]:
        with self._lock:
            return {
                "runs": [asdict(run) for run in self.runs],
                "effects": [asdict(effect) for effect in self.effects],
                "repeats": self.repeats,
            }

    @classmethod
    def of(cls, page: Mapping[str, Any]) -> Books:
        return cls(
            [Run(**run) for run in page["runs"]],
            [Effect(**effect) for effect in page["effects"]],
            page["repeats"],
        )


# --- what follows from it -------------------------------------------------------------------


@dataclass(frozen=True)
class Overlap:
    """Two runs of one job at the same moment."""

    earlier: Run
    later: Run
    until: float


def runs_by_job(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Each job's runs in the order in which they began."""
    found: defaultdict[str, list[Run]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.began):
        found[run.job].append(run)
    return dict(found)


def overlaps(runs: Iterable[Run]) -> list[Overlap]:
    return [
        Overlap(earlier, later, min(end_of(earlier), end_of(later)))
        for of_job in runs_by_job(runs).values()
        for number, later in enumerate(of_job)
        for earlier in of_job[:number]
        if end_of(earlier) > later.began
    ]


def end_of(run: Run) -> float:
    return float("inf") if run.ended is None else run.ended


def second_effects(books: Books) -> list[tuple[Effect, list[Effect]]]:
    """Each effect that its job had before, with those before it."""
    made: defaultdict[str, list[Effect]] = defaultdict(list)
    again = []
    for effect in sorted(books.effects, key=lambda effect: effect.at):
        if made[effect.job]:
            again.append((effect, list(made[effect.job])))
        made[effect.job].append(effect)
    return again


def seconds_until_next_run(runs: Sequence[Run]) -> list[float]:
    """Of each run whose process died: how long its job waited for the next one."""
    return [
        later.began - earlier.ended
        for of_job in runs_by_job(runs).values()
        for earlier, later in pairwise(of_job)
        if earlier.died and earlier.ended is not None and earlier.ended <= later.began
    ]


def began_too_early(of_job: Mapping[str, Sequence[Run]], earlier: str, later: str) -> bool:
    """Whether the later of two jobs began before the earlier one had ended for good.

    ``of_job``: as ``runs_by_job`` has them.
    """
    if earlier not in of_job or later not in of_job:
        return False
    return end_of(of_job[earlier][-1]) > of_job[later][0].began


def at_once(runs: Iterable[Run]) -> list[tuple[float, int]]:
    """How many runs went on at once: the moment of each change, and the number from then on."""
    changes = sorted(change for run in runs for change in ((run.began, 1), (end_of(run), -1)))
    number, found = 0, []
    for at, change in changes:
        number += change
        found.append((at, number))
    return found


def most_in_a_second(moments: Sequence[float]) -> int:
    """In any second, wherever it begins."""
    found, first = 0, 0
    ordered = sorted(moments)
    for last, at in enumerate(ordered):
        while ordered[first] <= at - 1:
            first += 1
        found = max(found, last - first + 1)
    return found


def share_of_time_at(steps: Sequence[tuple[float, int]], least: int) -> float:
    """The part of the time, from the first step to the last, with at least so many runs."""
    lasted = [(after - at, number) for (at, number), (after, _) in pairwise(steps)]
    total = sum(seconds for seconds, _ in lasted)
    return sum(seconds for seconds, number in lasted if number >= least) / total if total else 0.0
