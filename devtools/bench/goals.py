"""What each figure should reach, with all guarantees on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Goal:
    """``of``: the figure itself, or its ratio to that of plain Celery in the same rounds."""

    bound: float
    better: Literal["more", "less"]
    of: Literal["figure", "ratio"] = "figure"

    def is_met(self, value: float) -> bool:
        return value >= self.bound if self.better == "more" else value <= self.bound

    def __str__(self) -> str:
        sign = "\u2265" if self.better == "more" else "\u2264"
        return f"{sign} {self.bound:,g}{' x' if self.of == 'ratio' else ''}"


GOALS = {
    ("drain", "jobs_per_s"): Goal(0.75, "more", of="ratio"),
    ("drain", "cpu_ms_per_job"): Goal(1.5, "less", of="ratio"),
    ("drain-batched", "jobs_per_s"): Goal(5, "more", of="ratio"),
    ("enqueue", "calls_per_s"): Goal(1.0, "more", of="ratio"),
    ("bulk", "rows_per_s"): Goal(15_000, "more"),
    ("pickup", "p50_ms"): Goal(1.6, "less", of="ratio"),
    ("pickup", "p99_ms"): Goal(20, "less"),
    ("half", "p99_ms"): Goal(60, "less"),
    ("http", "requests_per_s"): Goal(250, "more"),
    ("http", "p99_ms"): Goal(50, "less"),
    # Leases are of 15 s.
    ("rescue", "median_s"): Goal(15, "less"),
    ("rescue", "longest_s"): Goal(30, "less"),
    ("idle", "cpu_percent"): Goal(1, "less"),
    ("idle", "resident_mb"): Goal(60, "less"),
    ("backlog", "grown_mb"): Goal(5, "less"),
    ("backlog", "cpu_of_few"): Goal(1.3, "less"),
    ("history", "speed_of_empty"): Goal(0.9, "more"),
    ("history", "cpu_of_empty"): Goal(1.1, "less"),
    ("written", "row_versions"): Goal(5, "less"),
    ("written", "wal_kb"): Goal(4, "less"),
    ("memory", "grown_mb"): Goal(5, "less"),
    ("async", "jobs_per_s"): Goal(300, "more"),
    ("async", "seconds"): Goal(20, "less"),
}
