"""Whether this process is alive, whether it can accept jobs, and whether a relay moves them."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Literal

import structlog
from django.db import DatabaseError, InterfaceError

from tasks.connections import bounded
from tasks.deadline import BoundedReader
from tasks.queues import due_by_queue, live_relays
from tasks.sql import fetch

# Work that only a relay can move has waited for this long: a relay that is merely restarted
# by a deploy is back sooner.
NO_RELAY_AFTER_S = 30.0
WATCH_EVERY_S = 10.0
# A probe that waits longer than its interval tells nothing.
READY_WITHIN_S = 2.0

log = structlog.get_logger(__name__)


# --- the relay ---------------------------------------------------------------------------


@dataclass(frozen=True)
class RelayStatus:
    """``work_waits``: something has needed a relay for ``NO_RELAY_AFTER_S``."""

    live: int
    work_waits: bool

    @property
    def is_missing(self) -> bool:
        return self.live == 0 and self.work_waits


def relay_status() -> RelayStatus:
    """Two small statements; the second only without a relay."""
    live = live_relays()
    return RelayStatus(live, work_waits=live == 0 and work_waits())


def work_waits() -> bool:
    """Due jobs, those whose time came with nobody to notice, and runs nobody has rescued."""
    if any(oldest_s > NO_RELAY_AFTER_S for _, oldest_s in due_by_queue().values()):
        return True
    rows = fetch(
        "WITH late AS MATERIALIZED (SELECT clock_timestamp() - %s * interval '1 second' AS at)"
        " SELECT EXISTS (SELECT FROM tasks_job"
        " WHERE state = 'queued' AND NOT due AND run_at < (SELECT at FROM late))"
        " OR EXISTS (SELECT FROM tasks_job"
        " WHERE state = 'running' AND lease_expires_at < (SELECT at FROM late))",
        [NO_RELAY_AFTER_S],
    )
    return bool(rows[0][0])


class RelayWatch:
    """Says in the log, once per outage, that no relay moves the work, and once that one is back.

    Whoever has a loop calls ``check``; the web server has none and calls ``start``.
    """

    def __init__(self) -> None:
        self._missing = False
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._stopping = threading.Event()

    def check(self) -> RelayStatus:
        """One look. Raises DatabaseError when the ledger does not answer."""
        status = relay_status()
        if status.is_missing != self._missing:
            self._missing = status.is_missing
            if self._missing:
                log.error("no_relay", waiting_s=NO_RELAY_AFTER_S, start="manage.py relay")
            else:
                log.info("relay_is_back", relays=status.live)
        return status

    def start(self) -> None:
        """Look every ``WATCH_EVERY_S`` from a daemon thread. Further calls do nothing."""
        if self._thread is not None:
            return
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="relay-watch", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(WATCH_EVERY_S):
            try:
                with bounded():
                    self.check()
            except Exception as exc:  # the watch must outlive whatever it meets
                log.warning("relay_watch_failed", error=repr(exc))


WATCH = RelayWatch()


# --- readiness ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Readiness:
    """Can this process accept? Without a relay it can: the jobs wait in the ledger."""

    database: Literal["ok", "unavailable", "no answer"]
    relay: Literal["ok", "none", "missing", "unknown"]

    @property
    def status(self) -> Literal["ready", "degraded", "unavailable"]:
        if self.database != "ok":
            return "unavailable"
        return "degraded" if self.relay == "missing" else "ready"


def readiness() -> Readiness:
    """Asks the database, for at most ``READY_WITHIN_S``.

    ``relay``: "none" is nobody there and nothing to do, "missing" is nobody there while work waits.
    """
    try:
        relay = READER.read(relay_status, within_s=READY_WITHIN_S)
    except TimeoutError:
        return Readiness(database="no answer", relay="unknown")
    except (DatabaseError, InterfaceError) as exc:
        log.warning("database_unavailable", error=str(exc))
        return Readiness(database="unavailable", relay="unknown")
    if relay.is_missing:
        return Readiness(database="ok", relay="missing")
    return Readiness(database="ok", relay="ok" if relay.live else "none")


READER = BoundedReader()
