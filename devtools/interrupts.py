"""SIGINT and SIGTERM as one exception in the main thread, never while it starts a child."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from devtools.console import say

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequested(KeyboardInterrupt):
    """SIGINT or SIGTERM arrived; raised wherever the main thread waits."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number
        self._is_acknowledged = False

    def acknowledge(self) -> None:
        """Says once that it was heard: stopping takes its time."""
        if not self._is_acknowledged:
            self._is_acknowledged = True
            say("Stopping ... Ctrl-C again kills.")


class _Shield:
    raised = False
    pending: int | None = None


def interrupt(number: int) -> None:
    """For signal handlers: raises, or remembers to raise at the end of ``uninterrupted``."""
    if _Shield.raised:
        _Shield.pending = number
        return
    raise StopRequested(number)


@contextmanager
def acknowledged() -> Iterator[None]:
    """For blocks whose surroundings wait for something before they end."""
    try:
        yield
    except StopRequested as stop:
        stop.acknowledge()
        raise


@contextmanager
def uninterrupted() -> Iterator[None]:
    """An exception between a fork and its bookkeeping would orphan the child."""
    _Shield.raised = True
    try:
        yield
    finally:
        _Shield.raised = False
        number, _Shield.pending = _Shield.pending, None
    if number is not None:
        raise StopRequested(number)
