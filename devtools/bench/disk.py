"""How long the disk takes to keep something. A job of the ledger waits for it three times, plain
Celery never; on machines that count the flushes, it changes from minute to minute."""

from __future__ import annotations

import os
import tempfile
import time
from statistics import median

FLUSHES = 20
PAGE = bytes(8192)  # what PostgreSQL writes at least


def flush_ms() -> float:
    """Median of some, where temporary files are, as those of the measured servers."""
    with tempfile.TemporaryFile() as file:
        file.write(PAGE)
        return median(_flush_ms(file.fileno()) for _ in range(FLUSHES))


def _flush_ms(descriptor: int) -> float:
    began = time.perf_counter()
    os.pwrite(descriptor, PAGE, 0)
    os.fdatasync(descriptor)
    return (time.perf_counter() - began) * 1000
