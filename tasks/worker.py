"""The one entry for a project: makes every worker of a Celery app a worker of the ledger."""

from __future__ import annotations

from typing import Any

from celery import Celery, signals

from tasks import (
    connections,
    drain,
    heartbeat,
    masking,
    rabbitmq_transport,
    redis_transport,
    worker_options,
)
from tasks.calls import send_jobs_to_the_ledger
from tasks.environment import refuse_foreign_ledger

DEFAULTS = {
    "task_default_queue": "default",
    "worker_consumer": "tasks.consumer.Consumer",
    "result_backend": "tasks.results.LedgerBackend",
    "task_acks_late": True,
    "worker_prefetch_multiplier": 1,
}


def install(app: Celery) -> None:
    """Call it where the app is made; it reads no setting and opens no connection.

    Settings of the project win over what it brings.
    """
    app.add_defaults(lambda: DEFAULTS)
    app.control_cls = "tasks.control.LedgerControl"
    send_jobs_to_the_ledger(app)
    redis_transport.install()
    rabbitmq_transport.install()
    connections.install(app)
    worker_options.install(app)
    drain.install(app)
    masking.install()
    signals.celeryd_init.connect(cure_the_pool)
    signals.celeryd_init.connect(stay_at_home)
    app.steps["consumer"].add(heartbeat.Heartbeat)


def cure_the_pool(**_: Any) -> None:
    """Imported in workers only: a web server has no use for what comes along."""
    from tasks import coroutines, prefork, task_stack

    prefork.install()
    task_stack.install()
    coroutines.install()


def stay_at_home(**_: Any) -> None:
    refuse_foreign_ledger()
