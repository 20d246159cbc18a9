"""Waits for the hint that there is work, on a connection of its own."""

from __future__ import annotations

import time
from typing import Any

import psycopg
import structlog
from django.conf import settings
from django.db import connection

from tasks.wake import CHANNEL

log = structlog.get_logger(__name__)

# Without LISTEN (a pooler in between, or switched off) polling is all there is.
POLL_WITHOUT_HINTS_S = 0.05
CONNECT_WITHIN_S = 5
# Between two attempts to listen; polling does the work meanwhile.
RECONNECTS_AFTER_S = 2.0


class Listener:
    """LISTEN needs a session of its own: ``LEDGER_DIRECT_URL`` where a pooler has none."""

    def __init__(self) -> None:
        self.session: psycopg.Connection[Any] | None = None
        self.connects_at = 0.0
        self.is_lost = False

    def wait(self, timeout_s: float) -> bool:
        """Until a hint or the timeout; True for a hint, or when one may have been missed."""
        is_wanted = getattr(settings, "TASKS_LEDGER_NOTIFY", True)
        if not is_wanted or (self.session is None and time.monotonic() < self.connects_at):
            time.sleep(POLL_WITHOUT_HINTS_S)
            return False
        try:
            if self.session is not None:
                return any(True for _ in self.session.notifies(timeout=timeout_s, stop_after=1))
            self.session = self.connect()
        except psycopg.Error as exc:
            self.lose(exc)
        else:
            self.note_found()
        return True  # what came before we listened must be looked for

    def lose(self, exc: Exception) -> None:
        """Hints only save time: without them the relay polls."""
        self.close()
        self.connects_at = time.monotonic() + RECONNECTS_AFTER_S
        if not self.is_lost:
            log.warning("listener_lost", error=str(exc))
        self.is_lost = True

    def note_found(self) -> None:
        if self.is_lost:
            log.info("listener_back")
        self.is_lost = False

    def connect(self) -> psycopg.Connection[Any]:
        url = getattr(settings, "TASKS_LEDGER_DIRECT_URL", "")
        session = (
            psycopg.connect(url, autocommit=True, connect_timeout=CONNECT_WITHIN_S)
            if url
            else psycopg.connect(**own_parameters(), autocommit=True)
        )
        try:
            session.execute(f"LISTEN {CHANNEL}")
        except psycopg.Error:
            session.close()
            raise
        return session

    def close(self) -> None:
        if self.session is not None:
            self.session.close()
            self.session = None


def own_parameters() -> dict[str, Any]:
    """Django's connection parameters, without what only Django understands."""
    parameters = connection.get_connection_params()
    not_libpq = {"context", "cursor_factory", "prepare_threshold", "isolation_level"}
    own = {name: value for name, value in parameters.items() if name not in not_libpq}
    return {"connect_timeout": CONNECT_WITHIN_S, **own}
