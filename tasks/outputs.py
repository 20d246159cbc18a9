"""What the runs of a job emitted, in pages that a reader can follow while the job runs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from tasks.sql import fetch

# Bytes of JSON of one page, but for a single output that is larger: 500 of the largest outputs
# would be 125 MiB.
PAGE_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True)
class Output:
    seq: int
    data: Any
    at: datetime


@dataclass(frozen=True)
class OutputPage:
    """``next``: where the next page begins; None when there is no more for now."""

    outputs: list[Output]
    next: int | None


def read_outputs(job_id: UUID, after: int | None, *, limit: int) -> OutputPage:
    """Up to ``limit`` outputs with a ``seq`` above ``after``, in the order of ``seq``."""
    rows = fetch(
        "SELECT seq, CASE WHEN fits THEN data END, at, fits FROM ("
        " SELECT *, row_number() OVER w <= %s AND (row_number() OVER w = 1"
        " OR sum(octet_length(data::text)) OVER w <= %s) AS fits FROM ("
        " SELECT seq, data, at FROM tasks_output WHERE job_id = %s AND (%s OR seq > %s)"
        " ORDER BY seq LIMIT %s) AS found WINDOW w AS (ORDER BY seq)) AS page ORDER BY seq",
        [limit, PAGE_BYTES_MAX, job_id, after is None, after or 0, limit + 1],
    )
    outputs = [Output(seq, data, at) for seq, data, at, fits in rows if fits]
    return OutputPage(outputs, outputs[-1].seq if len(outputs) < len(rows) else None)
