"""What a worker and its runs tell each other without the database: shared memory between a
pool's parent and its children, or between threads.

The parent writes: when a run's lease was renewed last, whether it was cancelled or lost, and
when the worker drains. A run reads it in ``check()``; that costs no round trip. A run writes that
its body is over: the parent hears of that from Celery only while its loop turns.
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
# A run that is over stands in the place that its id gives, until another one needs it. Some
# moments are enough.
OVER_ENTRIES = 1024
OVER = struct.Struct("<16sq")  # job id, dispatch number
OVER_AT = HEADER.size + ENTRIES * ENTRY.size
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
    """One per worker, made before its children are forked."""

    def __init__(self) -> None:
        # Anonymous and shared: a forked child sees what its parent writes later.
        self.memory = mmap.mmap(-1, OVER_AT + OVER_ENTRIES * OVER.size)
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

    def is_over(self, job_id: UUID, dispatch_no: int) -> bool:
        """Whether the body of this run has ended, as far as it is known."""
        return OVER.unpack_from(self.memory, over_at(job_id)) == (job_id.bytes, dispatch_no)

    # --- a run ------------------------------------------------------------------------

    def note_over(self, job_id: UUID, dispatch_no: int) -> None:
        OVER.pack_into(self.memory, over_at(job_id), job_id.bytes, dispatch_no)

    @property
    def drains_at(self) -> float:
        return float(HEADER.unpack_from(self.memory, 0)[0])

    @property
    def is_open(self) -> bool:
        return bool(HEADER.unpack_from(self.memory, 0)[1])

    @property
    def drain_has_begun(self) -> bool:
        """The worker takes nothing new; what runs may go on until the deadline."""
        return self.drains_at != NEVER

    @property
    def is_draining(self) -> bool:
        return time.monotonic() >= self.drains_at

    def read(self, job_id: UUID, dispatch_no: int) -> Notice | None:
        """None: no news, the run is younger than the last renewal."""
        at = self.memory.find(job_id.bytes, HEADER.size, OVER_AT)
        if at < 0 or (at - HEADER.size) % ENTRY.size:
            return None
        found, number, renewed_at, word = ENTRY.unpack_from(self.memory, at)
        if (found, number) != (job_id.bytes, dispatch_no):
            return None
        return Notice(job_id, number, renewed_at, Word(word))


def over_at(job_id: UUID) -> int:
    # The end of an id is random, its beginning is the time.
    return OVER_AT + int.from_bytes(job_id.bytes[-4:]) % OVER_ENTRIES * OVER.size


# The worker's own. Closed, and so without effect, wherever no worker runs.
BOARD = Board()
