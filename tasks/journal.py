"""What has become of each job of a batch, in memory that outlives the process that writes it.

A child of a pool writes here what it has started and how that ended. Its parent reads it: to renew
the leases of what is still to be settled, and, when the child has died, to tell what it was
running from what had ended before and from what never began.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from uuid import UUID

from billiard.process import current_process

# Jobs of one message, at most; what ``Queue.batch`` may be.
JOBS_MAX = 500
# Batches of one worker; the pages are touched only when used.
PLACES = 1024
# So many of them are one child's. It takes them in turn with those that had its number before: what
# a dead one left is still to be read when its successor begins.
PLACES_OF_CHILD = 4
# Bytes of results that ended jobs may keep here until they are settled. One that finds no room is
# settled before the next body starts.
RESULTS_BYTES = 16 * 1024
HEAD = struct.Struct("<16sII")  # id of the message, process, bytes of results
NUMBER = struct.Struct("<I")
RESULT = struct.Struct("<HI")  # number of the job in its message, length
NOBODY = bytes(16)
PID_AT = len(NOBODY)
USED_AT = PID_AT + NUMBER.size
HEADS_END = PLACES * HEAD.size
BODY_BYTES = JOBS_MAX + RESULTS_BYTES


class Stage(IntEnum):
    """One byte, so that no reader ever sees half of a change."""

    GONE = 0  # not claimed, settled, or given back
    CLAIMED = 1
    STARTED = 2
    ENDED = 3  # its body has returned, its result is here, and is still to be written
    NAMED = 4  # by the message; it may be claimed by now, and the process does not know it yet


HELD = (Stage.CLAIMED, Stage.STARTED, Stage.ENDED)


@dataclass(frozen=True)
class Entry:
    """A batch as its process has left it. Jobs are counted from 0, as in the message."""

    pid: int
    stages: bytes
    results: Mapping[int, str]

    def at(self, *stages: Stage) -> list[int]:
        return [number for number, found in enumerate(self.stages) if found in stages]

    def claimed(self) -> list[tuple[int, Stage]]:
        """What is claimed and not settled."""
        return [(number, Stage(self.stages[number])) for number in self.at(*HELD)]


class Place:
    """Where one batch writes. Its process is the only writer."""

    def __init__(self, memory: mmap.mmap, number: int) -> None:
        self._memory = memory
        self._head = number * HEAD.size
        self._stages = HEADS_END + number * BODY_BYTES
        self._results = self._stages + JOBS_MAX
        self._used = 0

    def begin(self, message_id: UUID, jobs: int) -> None:
        """The id comes last: whoever finds it finds all the rest."""
        self._memory[self._stages : self._results] = bytes([Stage.NAMED] * jobs).ljust(
            JOBS_MAX, b"\0"
        )
        HEAD.pack_into(self._memory, self._head, NOBODY, os.getpid(), 0)
        self._used = 0
        self._memory[self._head : self._head + PID_AT] = message_id.bytes

    def note(self, number: int, stage: Stage) -> None:
        self._memory[self._stages + number] = stage

    def keep(self, number: int, result: str) -> bool:
        """The job has ended with this result. False: there is no room for it."""
        data = result.encode()
        used = self._used + RESULT.size + len(data)
        if used > RESULTS_BYTES:
            return False
        at = self._results + self._used
        RESULT.pack_into(self._memory, at, number, len(data))
        self._memory[at + RESULT.size : self._results + used] = data
        self._note_used(used)
        self.note(number, Stage.ENDED)
        return True

    def forget_results(self) -> None:
        """All of them are settled."""
        self._note_used(0)

    def end(self) -> None:
        HEAD.pack_into(self._memory, self._head, NOBODY, 0, 0)

    def _note_used(self, used: int) -> None:
        self._used = used
        NUMBER.pack_into(self._memory, self._head + USED_AT, used)


class Journal:
    """One per worker, made before its children are forked."""

    def __init__(self) -> None:
        # Anonymous and shared: the parent sees what a forked child writes.
        self.memory = mmap.mmap(-1, HEADS_END + PLACES * BODY_BYTES)
        self._lock = threading.Lock()

    @contextmanager
    def place(self, message_id: UUID, jobs: int) -> Iterator[Place]:
        """For a message that names so many jobs. Taken before any of them is claimed."""
        with self._lock:
            place = Place(self.memory, self._free_place())
            place.begin(message_id, jobs)
        try:
            yield place
        finally:
            place.end()

    def _free_place(self) -> int:
        """Of a pool's child one of its own, by its number; else any that is free."""
        child: int | None = getattr(current_process(), "index", None)
        first = 0 if child is None else child * PLACES_OF_CHILD % PLACES
        last = PLACES if child is None else first + PLACES_OF_CHILD
        free = (number for number in range(first, last) if self._id_at(number) == NOBODY)
        return next(free, first)

    def _id_at(self, number: int) -> bytes:
        at = number * HEAD.size
        return self.memory[at : at + PID_AT]

    def read(self, message_id: UUID) -> list[Entry]:
        """Of each process that has this message: a broker may deliver it twice, and then each run
        claims what the other has not. None: it has not begun, or is over."""
        return [self._entry(number) for number in self._find(message_id)]

    def _entry(self, number: int) -> Entry:
        _, pid, used = HEAD.unpack_from(self.memory, number * HEAD.size)
        stages = HEADS_END + number * BODY_BYTES
        results = stages + JOBS_MAX
        kept = results_of(self.memory[results : results + used])
        return Entry(pid, self.memory[stages:results], kept)

    def forget(self, message_id: UUID, pid: int) -> None:
        """What a dead process left."""
        for number in self._find(message_id):
            if self._entry(number).pid == pid:
                Place(self.memory, number).end()

    def _find(self, message_id: UUID) -> list[int]:
        found, at = [], self.memory.find(message_id.bytes, 0, HEADS_END)
        while at >= 0:
            if at % HEAD.size == 0:
                found.append(at // HEAD.size)
            at = self.memory.find(message_id.bytes, at + 1, HEADS_END)
        return found


def results_of(kept: bytes) -> dict[int, str]:
    found, at = {}, 0
    while at + RESULT.size <= len(kept):
        number, length = RESULT.unpack_from(kept, at)
        at += RESULT.size
        found[number] = kept[at : at + length].decode()
        at += length
    return found


JOURNAL = Journal()
