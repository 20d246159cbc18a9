"""Every drill, in the order in which ``./dev drill all`` plays them."""

from __future__ import annotations

from devtools.drill.drills import (
    batch_poison,
    batch_sigkill,
    batch_sigterm,
    broker_mute,
    broker_restart,
    cancel,
    clock_jump,
    connection_drop,
    cutover,
    database_restart,
    duplicate_delivery,
    fairness,
    limit,
    oom_child,
    ordering,
    outage,
    poison,
    redis_lost_message,
    relay_killed,
    rolling_deploy,
    sigkill_child,
    sigkill_worker,
    sigterm_drain,
    stop_cont,
)

DRILLS = {
    module.DRILL.name: module.DRILL
    for module in (
        sigkill_worker,
        sigkill_child,
        oom_child,
        stop_cont,
        poison,
        sigterm_drain,
        rolling_deploy,
        cutover,
        broker_restart,
        broker_mute,
        connection_drop,
        redis_lost_message,
        duplicate_delivery,
        database_restart,
        relay_killed,
        clock_jump,
        limit,
        ordering,
        fairness,
        cancel,
        outage,
        batch_sigterm,
        batch_sigkill,
        batch_poison,
    )
}
