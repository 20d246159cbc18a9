"""What a worker tells its runs without the database: shared memory between a pool's parent and
its children, or between threads.

The parent writes: when a run's lease was renewed last, whether it was cancelled or lost, and
when the worker drains. A run reads it in ``check()``; that costs no round trip.
"""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntFlag
from uuid import UUID

# More runs than any worker has slots; the pages are touched only when used.
ENTRIES = 2048
HEADER = struct.Struct("<dB7x")  # drains at (monotonic), whether anybody renews here
ENTRY = struct.Struct("<16sqdB7x")  # job id, dispatch number, renewed at (monotonic), word
NEVER = float("inf")


class Word(IntFlag):
    """What the parent has to say to a run."""

    NOTHING = 0
    CANCEL = 1
    LOST = 2


@dataclass(frozen=True)
class Notice:
    """The last news of one run. ``renewed_at``: ``time.monotonic()``, the same in all processes."""

    job_id: UUID
    dispatch_no: int
    renewed_at: float
    word: Word = Word.NOTHING


class Board:
    """One per worker, made before its children are forked. One writer, any number of readers."""

    def __init__(self) -> None:
        # Anonymous and shared: a forked child sees what its parent writes later.
        self.memory = mmap.mmap(-1, HEADER.size + ENTRIES * ENTRY.size)
        self.clear()

    # --- the parent -------------------------------------------------------------------

    def clear(self) -> None:
        HEADER.pack_into(self.memory, 0, NEVER, 0)

    def open(self) -> None:
        """From now on somebody renews leases here."""
        HEADER.pack_into(self.memory, 0, self.drains_at, 1)

    def drain_at(self, moment: float) -> None:
        HEADER.pack_into(self.memory, 0, moment, 1)

    def post(self, notices: Sequence[Notice]) -> None:
        """Replace all notices. A reader that comes in between finds none, which is no news."""
        for number in range(ENTRIES):
            at = HEADER.size + number * ENTRY.size
            if number < len(notices):
                notice = notices[number]
                ENTRY.pack_into(
                    self.memory, at,
                    notice.job_id.bytes, notice.dispatch_no, notice.renewed_at, notice.word,
                )  # fmt: skip
            elif self.memory[at : at + 16] == bytes(16):
                return
            else:
                ENTRY.pack_into(self.memory, at, bytes(16), 0, 0.0, 0)

    # --- a run ------------------------------------------------------------------------

    @property
    def drains_at(self) -> float:
        return float(HEADER.unpack_from(self.memory, 0)[0])

    @property
    def is_open(self) -> bool:
        return bool(HEADER.unpack_from(self.memory, 0)[1])

    @property
    def is_draining(self) -> bool:
        return time.monotonic() >= self.drains_at

    def read(self, job_id: UUID, dispatch_no: int) -> Notice | None:
        """None: no news, the run is younger than the last renewal."""
        at = self.memory.find(job_id.bytes, HEADER.size)
        if at < 0 or (at - HEADER.size) % ENTRY.size:
            return None
        found, number, renewed_at, word = ENTRY.unpack_from(self.memory, at)
        if (found, number) != (job_id.bytes, dispatch_no):
            return None
        return Notice(job_id, number, renewed_at, Word(word))


# The worker's own. Closed, and so without effect, wherever no worker runs.
BOARD = Board()
