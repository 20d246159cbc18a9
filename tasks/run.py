"""What a task body sees of its job: ``current_run()``.

Outside a job everything here is inert, so a task stays a plain function in unit tests.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from celery.exceptions import Retry

from tasks import ledger
from tasks.errors import Cancelled, LeaseLost
from tasks.ledger import Claim
from tasks.links import Followers

# Seconds between two looks at the ledger, however often a body calls check().
CHECK_EVERY_S = 1.0


@dataclass
class Run:
    """One run of one job, owned through its fence."""

    claim: Claim
    task: Any
    retry: Retry | None = None  # set by LedgerTask.retry, read when the run is settled
    exhausted: bool = False  # a retry was asked for and none is left
    settled: bool = False
    started: bool = False
    followers: Followers | None = None  # what is accepted with the success of this run
    deadline: float | None = None  # time.monotonic() of the hard time limit
    checked_at: float = 0.0

    @property
    def job_id(self) -> UUID | None:
        return self.claim.id

    @property
    def key(self) -> str:
        return self.claim.key

    @property
    def attempt(self) -> int:
        """1 for the first run, and not counting runs whose process died."""
        return self.claim.attempts + 1

    @property
    def fence(self) -> int:
        return self.claim.fence

    @property
    def tenant(self) -> str:
        return self.claim.tenant

    def check(self) -> None:
        """Raise Cancelled when that was asked for, LeaseLost when another may own the job."""
        now = time.monotonic()
        if now - self.checked_at < CHECK_EVERY_S:
            return
        self.checked_at = now
        owned = ledger.look(self.claim.id, self.claim.fence)
        if owned is None:
            raise LeaseLost("this run no longer owns its job")
        if owned.cancel_requested:
            raise Cancelled("cancel was requested")

    def downstream_key(self, name: str) -> str:
        """The same for every run of this job: pass it on, and the downstream sees a repeat."""
        return hashlib.sha256(f"{self.claim.id}:{name}".encode()).hexdigest()[:32]


class NoRun(Run):
    """Outside a job: nothing is checked, nothing is kept."""

    def __init__(self) -> None:
        super().__init__(NO_CLAIM, None)

    @property
    def job_id(self) -> None:
        return None

    def check(self) -> None:
        return

    def downstream_key(self, name: str) -> str:
        return f"no-job:{name}"


NO_CLAIM = Claim(UUID(int=0), 0, "", "", "", "", None, None, 0, 0, 0, None, 0.0)
NO_RUN = NoRun()

_active: ContextVar[Run] = ContextVar("tasks_run", default=NO_RUN)


def current_run() -> Run:
    """The run of the body that calls; an inert one outside a job."""
    return _active.get()


@contextmanager
def active(run: Run) -> Iterator[Run]:
    token = _active.set(run)
    try:
        yield run
    finally:
        _active.reset(token)
