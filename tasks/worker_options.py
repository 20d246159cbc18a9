"""What a worker is given on the command line follows from its queues when it is not given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click
import structlog
from celery import Celery, signals
from click.core import ParameterSource
from django.conf import settings

from tasks.topology import DEFAULT, Queue, Topology

log = structlog.get_logger(__name__)

PROCESSES = "prefork"  # Celery's default pool
ALL_QUEUES_CONCURRENCY = 2  # a worker for everything is one for development


def install(app: Celery) -> None:
    """Workers of this app take concurrency, pool and hard time limit from the topology."""

    def on_init(instance: Any, conf: Any, options: dict[str, Any], **_: Any) -> None:
        if instance.app is app:
            names = options.get("queues") or ()
            refuse(names, given=options)
            derive(conf, names, given=options)
            instance.pool_of_queues = pool_name(names)

    def before_pool(sender: Any, **_: Any) -> None:
        if sender.app is app and not is_given("pool"):
            choose_pool(sender)

    signals.celeryd_init.connect(on_init, weak=False, dispatch_uid=f"{__name__}:{id(app)}")
    signals.worker_init.connect(before_pool, weak=False, dispatch_uid=f"{__name__}.pool:{id(app)}")


def refuse(names: Sequence[str], *, given: Mapping[str, Any]) -> None:
    """Ends the process where its options cannot be made to fit the topology."""
    queues = queues_of(names)
    if given.get("autoscale"):
        scale = given["autoscale"]
        given_range = scale if isinstance(scale, str) else ",".join(map(str, scale))
        raise SystemExit(
            f"--autoscale={given_range} is refused: memory and database connections are sized for"
            f" {concurrency(queues)} processes, and the relay sends what this worker"
            " reports as free. Change processes or replicas in config/topology.py."
        )
    if names and len({queue.pool for queue in queues}) > 1:
        by_pool = ", ".join(f"{queue.name} {queue.pool}" for queue in queues)
        raise SystemExit(
            f"-Q {','.join(names)} is refused: these queues need different pools ({by_pool})."
            " Start one worker for each."
        )


def derive(conf: Any, names: Sequence[str], *, given: Mapping[str, Any]) -> None:
    """Set what the project has not set; the command line, ``given``, wins over settings."""
    queues = queues_of(names)
    if conf.worker_concurrency is None:
        conf.worker_concurrency = concurrency(queues) if names else ALL_QUEUES_CONCURRENCY
    if conf.task_time_limit is None:
        conf.task_time_limit = time_limit_s(queues)
    log.info(
        "worker_options",
        queues=[queue.name for queue in queues],
        concurrency=given.get("concurrency") or conf.worker_concurrency,
        time_limit_s=given.get("time_limit") or conf.task_time_limit,
    )


def queues_of(names: Sequence[str]) -> list[Queue]:
    """Those of ``-Q``; without it, all that are declared."""
    topology: Topology = getattr(settings, "TASKS_TOPOLOGY", DEFAULT)
    return [topology.queue(name) for name in names] or list(topology.queues.values())


def concurrency(queues: list[Queue]) -> int:
    """The smallest: all processes may be busy with the same queue, and its limit must hold."""
    return min(queue.concurrency for queue in queues)


def time_limit_s(queues: list[Queue]) -> int:
    """The largest: a shorter one would kill runs of another queue that are within theirs."""
    return max(queue.time_limit for queue in queues)


def pool_name(names: Sequence[str]) -> str:
    """The one pool of all these queues; ``refuse`` has seen to that."""
    return queues_of(names)[0].pool if names else "prefork"


def choose_pool(worker: Any) -> None:
    """A pool of the command line or of the settings wins."""
    if worker.app.conf.worker_pool == PROCESSES:
        worker.pool_cls = worker.pool_of_queues


def is_given(option: str) -> bool:
    """On the command line; Celery itself cannot tell its default from the same word there."""
    context = click.get_current_context(silent=True)
    source = context.get_parameter_source(option) if context else None
    return source == ParameterSource.COMMANDLINE
