"""Medians over the rounds, and the ratio to plain Celery: that is what other machines share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.table import Table

from devtools.bench.goals import GOALS, Goal
from devtools.bench.systems import CELERIAC, PLAIN


@dataclass(frozen=True)
class Sample:
    """The figures of one system in one round. ``disk_ms``: of a flush before it, 0 not measured."""

    round: int
    measure: str
    system: str
    figures: dict[str, float]
    disk_ms: float = 0.0


@dataclass(frozen=True)
class Line:
    """One line of the table: a figure of both systems, and Celeriac's as a multiple of Celery's.

    ``plain`` is None where only Celeriac is measured.
    """

    measure: str
    figure: str
    plain: float | None
    celeriac: float

    @property
    def ratio(self) -> float | None:
        return self.celeriac / self.plain if self.plain else None

    @property
    def goal(self) -> Goal | None:
        return GOALS.get((self.measure, self.figure))

    @property
    def is_met(self) -> bool | None:
        """None: there is no goal, or nothing to compare with."""
        if self.goal is None:
            return None
        value = self.ratio if self.goal.of == "ratio" else self.celeriac
        return None if value is None else self.goal.is_met(value)


# What each figure is called, and with how many decimals it is shown.
MEANING = {
    "jobs_per_s": ("jobs/s", 0),
    "cpu_ms_per_job": ("CPU s per 1,000 jobs", 2),
    "cpu_ms_per_job_processes": ("  of worker and relay", 2),
    "cpu_ms_per_job_servers": ("  of PostgreSQL and Redis", 2),
    "calls_per_s": ("calls/s", 0),
    "cpu_ms_per_call": ("CPU ms per call", 2),
    "rows_per_s": ("rows/s", 0),
    "requests_per_s": ("requests/s", 0),
    "p50_ms": ("p50 ms", 1),
    "p99_ms": ("p99 ms", 1),
    "median_s": ("median s", 1),
    "longest_s": ("longest s", 1),
    "seconds": ("s, 2,000 x 0.5 s", 1),
    "cpu_percent": ("% of a core", 2),
    "grown_mb": ("MB more", 1),
    "relay_grown_mb": ("MB more, relay", 1),
    "resident_mb": ("MB resident", 0),
    "cpu_of_few": ("CPU to few rows", 2),
    "speed_of_empty": ("speed to empty", 2),
    "cpu_of_empty": ("CPU to empty", 2),
    "row_versions": ("rows a job", 1),
    "wal_kb": ("WAL KB a job", 2),
}


def lines(samples: Sequence[Sample]) -> list[Line]:
    """In the order in which things were measured; only what Celeriac has."""
    measures = list(dict.fromkeys(sample.measure for sample in samples))
    names = dict.fromkeys(
        (s.measure, figure) for s in samples if s.system == CELERIAC for figure in s.figures
    )
    ordered = sorted(names, key=lambda n: (measures.index(n[0]), list(MEANING).index(n[1])))
    return [
        Line(measure, figure, median_of(samples, measure, figure, PLAIN), celeriac)
        for measure, figure in ordered
        if (celeriac := median_of(samples, measure, figure, CELERIAC)) is not None
    ]


def median_of(samples: Sequence[Sample], measure: str, figure: str, system: str) -> float | None:
    found = [
        s.figures[figure]
        for s in samples
        if s.measure == measure and s.system == system and figure in s.figures
    ]
    return median(found) if found else None


def table(found: Sequence[Line], rounds: int) -> Table:
    title = "One round" if rounds == 1 else f"Median of {rounds} rounds"
    shown = Table(title=title, title_justify="left", title_style="bold")
    shown.add_column("measure")
    shown.add_column("figure")
    for heading in ("plain Celery", "Celeriac", "ratio", "goal"):
        shown.add_column(heading, justify="right")
    shown.add_column("")
    before = None
    for line in found:
        if line.measure != before and before is not None:
            shown.add_section()
        name, decimals = MEANING[line.figure]
        shown.add_row(
            "" if line.measure == before else line.measure,
            name,
            "" if line.plain is None else f"{line.plain:,.{decimals}f}",
            f"{line.celeriac:,.{decimals}f}",
            "" if line.ratio is None else f"{line.ratio:.2f} x",
            "" if line.goal is None else str(line.goal),
            {None: "", True: "met", False: "missed"}[line.is_met],
        )
        before = line.measure
    return shown


def about_the_disk(samples: Sequence[Sample]) -> str:
    """A commit waits for a flush. Where one takes milliseconds, that is what was measured."""
    flushes = sorted(sample.disk_ms for sample in samples)
    return f"A flush to disk took {flushes[0]:.2f} to {flushes[-1]:.2f} ms before the measures."


def as_json(samples: Sequence[Sample], about: dict[str, Any]) -> dict[str, Any]:
    return {
        "about": about,
        "medians": [told(line) for line in lines(samples)],
        "samples": [vars(sample) for sample in samples],
    }


def told(line: Line) -> dict[str, Any]:
    goal = None if line.goal is None else str(line.goal)
    return {**vars(line), "ratio": line.ratio, "goal": goal, "is_met": line.is_met}
