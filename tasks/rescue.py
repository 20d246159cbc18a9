"""Gives jobs back whose worker is gone: an expired lease queues them again, or ends them."""

from __future__ import annotations

import time
from uuid import UUID

import structlog

from tasks import ledger, metrics
from tasks.registry import task_of
from tasks.wiring import topology

log = structlog.get_logger(__name__)

DEFAULT_MAX_CRASHES = 3
# Seconds for which a lease must be seen expired, and its row free. A lock kept its owner from
# renewing; the owner asks every second, and gets its turn before the job is taken away.
EXPIRED_FOR_S = 2.0


class Rescuer:
    """Looks again and again, and takes what it has found expired for ``EXPIRED_FOR_S``."""

    def __init__(self) -> None:
        self.expired_since: dict[tuple[UUID, int], float] = {}

    def rescue(self, limit: int, *, watched_s: float) -> int:
        """Take every run whose lease stays expired away from its worker; how many that were.

        ``watched_s``: for how long the ledger has answered. In a whole lease whoever renews has
        renewed; before that an outage may have kept it from renewing.

        Guarded by fence: a run that settled or renewed in between keeps its job.
        """
        now = time.monotonic()
        seen = {(lost.id, lost.fence): lost for lost in ledger.expired_leases(limit)}
        self.expired_since = {key: self.expired_since.get(key, now) for key in seen}
        return sum(
            take(lost)
            for key, lost in seen.items()
            if now - self.expired_since[key] >= EXPIRED_FOR_S
            and watched_s >= topology().queue(lost.queue).lease
        )


def take(lost: ledger.Expired) -> bool:
    max_crashes = getattr(task_of(lost.task), "max_crashes", DEFAULT_MAX_CRASHES)
    reason = f"the lease of {lost.worker} expired"
    state = ledger.crash(
        lost.id, lost.fence, max_crashes=max_crashes, reason=reason, expired_only=True
    )
    if state is None:
        return False
    metrics.rescued(lost.queue, lost.task)
    log.warning(
        "job_rescued", job_id=str(lost.id), fence=lost.fence, worker=lost.worker, state=state
    )
    return True
