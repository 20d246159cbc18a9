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


class Listener:
    """LISTEN needs a session of its own: ``LEDGER_DIRECT_URL`` where a pooler has none."""

    def __init__(self) -> None:
        self.session: psycopg.Connection[Any] | None = None

    def wait(self, timeout_s: float) -> bool:
        """Until a hint or the timeout; True for a hint."""
        if not getattr(settings, "TASKS_LEDGER_NOTIFY", True):
            time.sleep(POLL_WITHOUT_HINTS_S)
            return False
        if self.session is None:
            self.session = self.connect()
            return True  # what came before we listened must be looked for
        return any(True for _ in self.session.notifies(timeout=timeout_s, stop_after=1))

    def connect(self) -> psycopg.Connection[Any]:
        url = getattr(settings, "TASKS_LEDGER_DIRECT_URL", "")
        session = (
            psycopg.connect(url, autocommit=True, connect_timeout=5)
            if url
            else psycopg.connect(**own_parameters(), autocommit=True)
        )
        session.execute(f"LISTEN {CHANNEL}")
        return session

    def close(self) -> None:
        if self.session is not None:
            self.session.close()
            self.session = None


def own_parameters() -> dict[str, Any]:
    """Django's connection parameters, without what only Django understands."""
    parameters = connection.get_connection_params()
    return {
        name: value
        for name, value in parameters.items()
        if name not in {"context", "cursor_factory", "prepare_threshold", "isolation_level"}
    }
