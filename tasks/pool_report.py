"""What a pool says of itself: at any moment, and when it has stopped."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Snapshot:
    """Ages are in seconds. Counters count from the start of the pool.

    Watch ``oldest_age``: a long line that moves is healthy, a short one that stands is not.

    The counters add up: ``submitted`` = ``waiting_for_room`` + ``refused_full`` +
    ``refused_closed`` + ``refused_late`` + ``callers_gone`` + ``accepted``, and ``accepted`` =
    ``depth`` + ``active`` + ``succeeded`` + ``failed`` + ``cancelled`` + ``shed`` + ``discarded``.
    """

    name: str
    slots: int
    capacity: int
    is_open: bool

    depth: int
    oldest_age: float
    active: int
    longest_run: float
    waiting_for_room: int

    submitted: int
    refused_full: int
    refused_closed: int
    refused_late: int
    callers_gone: int  # cancelled while they waited for room

    accepted: int
    succeeded: int
    failed: int
    cancelled: int
    shed: int
    discarded: int

    @property
    def utilisation(self) -> float:
        """Share of the slots that work, 0.0 to 1.0."""
        return self.active / self.slots

    @property
    def rejected(self) -> int:
        """Turned away by the pool, at the door or out of the line."""
        return self.refused_full + self.refused_closed + self.refused_late + self.shed


@dataclass(frozen=True)
class StopReport:
    """What became of everything that the pool had accepted.

    The names are of tickets that the stop ended: ``discarded`` never began, ``interrupted``
    began and stopped, ``unstoppable`` may still be running, and nobody waits for it any more.
    """

    pool: str
    reason: str
    succeeded: int
    failed: int
    cancelled: int
    rejected: int
    discarded: tuple[str, ...]
    interrupted: tuple[str, ...]
    unstoppable: tuple[str, ...]

    @property
    def is_clean(self) -> bool:
        """Whether all of it ended by itself."""
        return not (self.discarded or self.interrupted or self.unstoppable)
