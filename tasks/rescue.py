"""Gives jobs back whose worker is gone: an expired lease queues them again, or ends them."""

from __future__ import annotations

import structlog

from tasks import ledger, metrics
from tasks.registry import task_of

log = structlog.get_logger(__name__)

DEFAULT_MAX_CRASHES = 3


def rescue(limit: int) -> int:
    """Take every run whose lease has expired away from its worker; how many that were.

    Guarded by fence: a run that settled or renewed in between keeps its job.
    """
    taken = 0
    for lost in ledger.expired_leases(limit):
        task = task_of(lost.task)
        limit_of_task = getattr(task, "max_crashes", DEFAULT_MAX_CRASHES)
        reason = f"the lease of {lost.worker} expired"
        state = ledger.crash(lost.id, lost.fence, max_crashes=limit_of_task, reason=reason,
                             expired_only=True)  # fmt: skip
        if state is None:
            continue
        taken += 1
        metrics.rescued(lost.queue, lost.task)
        log.warning("job_rescued", job_id=str(lost.id), fence=lost.fence, worker=lost.worker,
                    state=state)  # fmt: skip
    return taken
