"""Medians over the rounds, and the ratio to plain Celery: that is what other machines share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.table import Table

from devtools.bench.systems import CELERIAC, PLAIN


@dataclass(frozen=True)
class Sample:
    """One figure of one system in one round."""

    round: int
    measure: str
    system: str
    figures: dict[str, float]


@dataclass(frozen=True)
class Line:
    """One line of the table: a figure of both systems, and Celeriac's as a multiple of Celery's."""

    measure: str
    figure: str
    plain: float
    celeriac: float

    @property
    def ratio(self) -> float | None:
        return self.celeriac / self.plain if self.plain else None


# What each figure is called, and whether more of it is better.
MEANING = {
    "jobs_per_s": ("jobs/s", True),
    "cpu_ms_per_job": ("CPU s per 1,000 jobs", False),
    "cpu_ms_per_job_processes": ("  of worker and relay", False),
    "cpu_ms_per_job_servers": ("  of PostgreSQL and Redis", False),
    "calls_per_s": ("calls/s", True),
    "cpu_ms_per_call": ("CPU ms per call", False),
    "rows_per_s": ("rows/s", True),
    "p50_ms": ("p50 ms", False),
    "p99_ms": ("p99 ms", False),
}


def lines(samples: Sequence[Sample]) -> list[Line]:
    """In the order in which things were measured; only what both systems have."""
    names = dict.fromkeys((s.measure, figure) for s in samples for figure in s.figures)
    found = [
        Line(measure, figure, *(_median(samples, measure, figure, s) for s in (PLAIN, CELERIAC)))
        for measure, figure in names
    ]
    return sorted(found, key=lambda line: list(MEANING).index(line.figure))


def _median(samples: Sequence[Sample], measure: str, figure: str, system: str) -> float:
    return median(
        s.figures[figure]
        for s in samples
        if s.measure == measure and s.system == system and figure in s.figures
    )


def table(found: Sequence[Line], rounds: int) -> Table:
    shown = Table(title=f"Median of {rounds} rounds", title_justify="left", title_style="bold")
    shown.add_column("measure")
    shown.add_column("figure")
    for heading in ("plain Celery", "Celeriac", "ratio"):
        shown.add_column(heading, justify="right")
    before = None
    for line in found:
        if line.measure != before and before is not None:
            shown.add_section()
        name, is_rate = MEANING[line.figure]
        shown.add_row(
            "" if line.measure == before else line.measure,
            name,
            _figure(line.plain, is_rate),
            _figure(line.celeriac, is_rate),
            "" if line.ratio is None else f"{line.ratio:.2f} x",
        )
        before = line.measure
    return shown


def _figure(value: float, is_rate: bool) -> str:
    return f"{value:,.0f}" if is_rate else f"{value:,.2f}"


def as_json(samples: Sequence[Sample], about: dict[str, Any]) -> dict[str, Any]:
    return {
        "about": about,
        "medians": [{**vars(line), "ratio": line.ratio} for line in lines(samples)],
        "samples": [vars(sample) for sample in samples],
    }
