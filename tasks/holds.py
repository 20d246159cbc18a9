"""Lets held jobs go again once somebody can run them: one who knows the task, another release."""

from __future__ import annotations

import structlog

from tasks import ledger
from tasks.fleet import LIVE_FOR_S
from tasks.wiring import topology

log = structlog.get_logger(__name__)

# Seconds between two tries of one job: while two releases are live, the message may reach the
# wrong one again.
PAUSE_S = 1.0


def release(limit: int) -> int:
    """What a live worker of its queue can run goes back to the due work; how many jobs."""
    known = ledger.release_known(limit, pause_s=PAUSE_S, live_for_s=LIVE_FOR_S)
    refused = ledger.release_refused(limit, pause_s=PAUSE_S, live_for_s=LIVE_FOR_S)
    if known or refused:
        log.info("holds_released", task_known=known, other_release=refused)
    return known + refused


def give_up(limit: int) -> int:
    """End what nobody could run for the queue's ``give_up_after``; how many jobs."""
    count = 0
    for queue in ledger.queues_with_held_jobs():
        after_s = topology().queue(queue).give_up_after.total_seconds()
        for job_id in ledger.give_up_held(queue, after_s, limit):
            log.error("job_gave_up", job_id=str(job_id), queue=queue)
            count += 1
    return count
