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
    """Workers of this app take concurrency and hard time limit from the topology."""

    def on_init(instance: Any, conf: Any, options: dict[str, Any], **_: Any) -> None:
        if instance.app is app:
            derive(conf, options.get("queues") or (), given=options)

    def on_worker_init(sender: Any, **_: Any) -> None:
        if sender.app is app and not is_given("pool"):
            choose_pool(sender)

    signals.celeryd_init.connect(on_init, weak=False, dispatch_uid=f"{__name__}:{id(app)}")
    signals.worker_init.connect(on_worker_init, weak=False, dispatch_uid=f"{__name__}:{id(app)}")


def derive(conf: Any, names: Sequence[str], *, given: Mapping[str, Any]) -> None:
    """Set what the project has not set; the command line, ``given``, wins over settings."""
    topology = deployed()
    queues = [topology.queue(name) for name in names] or list(topology.queues.values())
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


def choose_pool(worker: Any) -> None:
    """Threads where every queue of the worker counts in slots."""
    queues = [deployed().queue(name) for name in worker.app.amqp.queues.consume_from]
    if worker.app.conf.worker_pool == PROCESSES and all(queue.slots for queue in queues):
        worker.pool_cls = "threads"


def is_given(option: str) -> bool:
    """On the command line; Celery itself cannot tell its default from the same word there."""
    context = click.get_current_context(silent=True)
    source = context.get_parameter_source(option) if context else None
    return source == ParameterSource.COMMANDLINE


def deployed() -> Topology:
    topology: Topology = getattr(settings, "TASKS_TOPOLOGY", DEFAULT)
    return topology


def concurrency(queues: list[Queue]) -> int:
    """The smallest: all processes may be busy with the same queue, and its limit must hold."""
    return min(queue.concurrency for queue in queues)


def time_limit_s(queues: list[Queue]) -> int:
    """The largest: a shorter one would kill runs of another queue that are within theirs."""
    return max(queue.time_limit for queue in queues)
