"""System checks: what would break a promise is said before the first job."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

from celery import current_app
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register

from tasks.errors import InvalidKey, InvalidPayload
from tasks.keys import check_template, fields_of
from tasks.registry import ledger_tasks, plain_tasks
from tasks.signature import Signature, signature_of
from tasks.wiring import topology

# Its consumer_timeout, unless configured.
RABBITMQ_WAITS_S = 1800


@register()
def the_ledger_needs_postgresql(app_configs: Any, **kwargs: Any) -> Sequence[CheckMessage]:
    if settings.DATABASES["default"]["ENGINE"] == "django.db.backends.postgresql":
        return []
    return [
        Error(
            "The ledger needs PostgreSQL.",
            hint="Set DATABASES['default']['ENGINE'] to django.db.backends.postgresql.",
            id="tasks.E001",
        )
    ]


@register()
def the_ledger_needs_read_committed(app_configs: Any, **kwargs: Any) -> Sequence[CheckMessage]:
    database: dict[str, Any] = settings.DATABASES["default"]
    options = database.get("OPTIONS", {})
    level = options.get("isolation_level")
    if level is None or getattr(level, "name", "") == "READ_COMMITTED":
        return []
    return [
        Error(
            "The ledger needs the isolation level READ COMMITTED.",
            hint="Remove isolation_level from the OPTIONS of DATABASES['default']: a repeat "
            "must see the row that another transaction has just committed.",
            id="tasks.E002",
        )
    ]


@register()
def a_ledger_task_has_named_parameters(app_configs: Any, **kwargs: Any) -> Sequence[CheckMessage]:
    errors = []
    for name, task in ledger_tasks().items():
        try:
            signature_of(task)
        except InvalidPayload as exc:  # says the remedy itself
            errors.append(Error(exc.message, obj=name, id="tasks.E003"))
    return errors


@register()
def a_key_is_made_of_parameters(app_configs: Any, **kwargs: Any) -> Sequence[CheckMessage]:
    errors = []
    for name, task, signature in readable_tasks():
        if not task.key:
            continue
        try:
            check_template(task.key, signature)
        except InvalidKey as exc:
            errors.append(Error(f"{exc}.", obj=name, id="tasks.E004"))
    return errors


@register()
def sensitive_names_are_parameters(app_configs: Any, **kwargs: Any) -> Sequence[CheckMessage]:
    errors = []
    for name, task, signature in readable_tasks():
        if isinstance(task.sensitive, str):
            wrong = f"sensitive={task.sensitive!r} is a text, not a tuple of names."
        elif unknown := [each for each in task.sensitive if each not in signature]:
            wrong = f"sensitive names {', '.join(unknown)}, which the task does not take."
        else:
            continue
        hint = "The value that was meant would be shown in the admin, the API and the logs."
        errors.append(Error(wrong, hint=hint, obj=name, id="tasks.E005"))
    return errors


@register()
def keys_hold_nothing_sensitive(app_configs: Any, **kwargs: Any) -> Sequence[CheckMessage]:
    errors = []
    for name, task, _ in readable_tasks():
        shown = fields_in_key(task) & set(task.sensitive)
        if shown:
            wrong = f"The key {task.key!r} holds sensitive values: {', '.join(sorted(shown))}."
            hint = "Keys are shown and logged. Make the key of what identifies the intent."
            errors.append(Error(wrong, hint=hint, obj=name, id="tasks.E006"))
    return errors


@register()
def every_task_is_a_ledger_task(app_configs: Any, **kwargs: Any) -> Sequence[CheckMessage]:
    names = plain_tasks()
    if not names:
        return []
    return [
        Warning(
            "Plain Celery tasks run without the ledger's guarantees: "
            f"they may be lost, or run twice: {', '.join(names)}.",
            hint="Give them base=LedgerTask, or put tasks.W001 into SILENCED_SYSTEM_CHECKS.",
            id="tasks.W001",
        )
    ]


@register()
def every_queue_is_declared(app_configs: Any, **kwargs: Any) -> Sequence[CheckMessage]:
    declared = topology().queues
    warnings = []
    for name, task in ledger_tasks().items():
        queue = task.queue or current_app.conf.task_default_queue
        if queue in declared:
            continue
        meant = get_close_matches(queue, declared, n=1)
        hint = f"Did you mean {meant[0]!r}? " if meant else ""
        warnings.append(
            Warning(
                f"The queue {queue!r} is not declared: it has no limits, and no worker takes from "
                f"it unless one is started with -Q {queue}.",
                hint=f"{hint}Queues are declared in the topology (config/topology.py).",
                obj=name,
                id="tasks.W002",
            )
        )
    return warnings


@register()
def what_runs_in_a_slot_can_be_stopped(app_configs: Any, **kwargs: Any) -> Sequence[CheckMessage]:
    declared = topology().queues
    return [
        Warning(
            f"Its queue {task.queue!r} has slots, which are threads: no time limit ends a plain"
            " body there, and no cancel or drain interrupts it.",
            hint="Write it async def, or name a queue with processes. If its body calls"
            " current_run().check() and all that it waits for has a timeout, silence tasks.W004.",
            obj=name,
            id="tasks.W004",
        )
        for name, task in ledger_tasks().items()
        if task.queue in declared
        and declared[task.queue].slots is not None
        and not inspect.iscoroutinefunction(inspect.unwrap(task.run))
    ]


@register()
def rabbitmq_lets_every_run_end(app_configs: Any, **kwargs: Any) -> Sequence[CheckMessage]:
    if not str(current_app.conf.broker_url or "").startswith(("amqp", "pyamqp")):
        return []
    return [
        Warning(
            f"The queue {queue.name!r} lets a run last {queue.time_limit} s and drain for "
            f"{queue.drain_s} s; RabbitMQ closes the channel of a worker that holds a message for "
            f"more than {RABBITMQ_WAITS_S} s.",
            hint="Its consumer_timeout must be longer, in milliseconds: in rabbitmq.conf, or from "
            "RabbitMQ 3.12 on in a policy for this queue. Then silence tasks.W003.",
            obj=queue.name,
            id="tasks.W003",
        )
        for queue in topology().queues.values()
        if queue.time_limit + queue.drain_s > RABBITMQ_WAITS_S
    ]


def readable_tasks() -> Iterator[tuple[str, Any, Signature]]:
    """The ledger tasks whose parameters can be told; the others have an error of their own."""
    for name, task in ledger_tasks().items():
        with suppress(InvalidPayload):
            yield name, task, signature_of(task)


def fields_in_key(task: Any) -> frozenset[str]:
    try:
        return fields_of(task.key) if task.key else frozenset()
    except InvalidKey:
        return frozenset()
