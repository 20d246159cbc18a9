"""Lets held jobs go again once somebody can run them: one who knows the task, another release."""

from __future__ import annotations

import structlog

from tasks import ledger
from tasks.fleet import LIVE_FOR_S

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
