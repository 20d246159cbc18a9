"""From Celery's calls to jobs: ``.delay()``, ``.apply_async()``, signatures and ``send_task``.

Every option of a call is kept, mapped or refused with what to write instead; the complete
table is docs/compatibility.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from celery import Celery, signals
from celery.result import AsyncResult
from kombu.utils import json as kombu_json
from kombu.utils.functional import maybe_list

from tasks.enqueue import Enqueued, Item, accept, uuid7
from tasks.registry import task_of
from tasks.run import NO_RUN, current_run
from tasks.signature import signature_of

REFUSED = {
    "time_limit": "set time_limit on the task or on its queue",
    "soft_time_limit": "set soft_time_limit on the task",
    "chord": "let each job of the group enqueue the next step under one key: the first creates it",
    "exchange": "name a queue",
    "routing_key": "name a queue",
    "compression": "payloads do not travel over the broker, there is nothing to compress",
    "shadow": "the admin, Flower and the ledger show one name",
}
# Read by accept_call, or carried with the job.
TAKEN = {
    *("countdown", "eta", "expires", "priority", "queue", "task_id", "headers", "serializer"),
    *("link", "link_error", "chain", "group_id", "group_index", "root_id", "parent_id"),
    *("replaced_task_nesting", "ignore_result", "stamped_headers", "periodic_task_name"),
}
# How to publish a message, or where to look up its route: there is no message.
WITHOUT_MEANING = {
    *("producer", "publisher", "connection", "retry", "retry_policy", "add_to_parent"),
    *("reply_to", "route_name", "router", "delivery_mode", "mandatory", "immediate"),
    *("task_type", "result_cls", "exchange_type"),
}
# Celery's own plumbing that travels with the job and comes back in ``self.request``.
CARRIED = ("group_index", "root_id", "parent_id", "replaced_task_nesting", "stamped_headers")


def refuse_options(options: Mapping[str, Any]) -> None:
    """Raise TypeError for an option that would be ignored, naming the replacement."""
    known = TAKEN | WITHOUT_MEANING | set(options.get("stamped_headers") or ())
    for name, value in options.items():
        if value is None:
            continue
        if name in REFUSED:
            raise TypeError(f"{name} is not supported by LedgerTask: {REFUSED[name]}")
        if name not in known:
            raise TypeError(f"{name} is no option of a LedgerTask; what travels goes into headers")
    if options.get("serializer") not in (None, "json"):
        raise TypeError("payloads are JSON: annotate the parameters to have other types restored")


def accept_call(
    task: Any, args: Any, kwargs: Any, options: Mapping[str, Any]
) -> tuple[Enqueued, AsyncResult[Any]]:
    """Accept the job that a Celery call means; the answer, and the result its caller gets."""
    payload = signature_of(task).bind(args or (), kwargs or {})
    job_id = job_id_of_call(options.get("task_id")) or uuid7()
    headers = announced(task, args, kwargs, {**options, "task_id": str(job_id)})
    answer = accept(
        task,
        Item(
            payload,
            priority=priority_of(task, options),
            run_at=moment(task.app, options.get("eta"), options.get("countdown")),
            start_by=moment(task.app, options.get("expires"), None),
            queue=queue_name(options.get("queue")),
            job_id=job_id,
            headers=headers,
        ),
    )
    result = (options.get("result_cls") or task.AsyncResult)(str(answer.job_id))
    result.ignored = bool(options.get("ignore_result"))
    return answer, result


def send_jobs_to_the_ledger(app: Celery) -> None:
    """Wrap ``app.send_task``, the one place where Celery publishes a task by name."""
    if getattr(app.send_task, "sends_jobs_to_the_ledger", False):
        return

    def send_task(
        name: str, args: Any = None, kwargs: Any = None, *more: Any, **options: Any
    ) -> Any:
        refuse_to_unpack_jobs(app, name, kwargs)
        called_through = options.get("task_type")
        task: Any = called_through or app.tasks.get(name) or task_of(name)
        if not getattr(task, "is_ledger_task", False):
            # Looked up now: Sentry and others replace the method of the class, sooner or later.
            return type(app).send_task(app, name, args, kwargs, *more, **options)
        if called_through is None:
            options.update(zip(("countdown", "eta", "task_id"), more, strict=False))
            return task.apply_async(args, kwargs, **options)
        return accept_call(task, args, kwargs, options)[1]

    send_task.sends_jobs_to_the_ledger = True  # type: ignore[attr-defined]
    app.send_task = send_task  # type: ignore[method-assign]


def refuse_to_unpack_jobs(app: Celery, name: str, kwargs: Any) -> None:
    """``task.map`` and ``task.chunks`` call bodies one after the other inside a plain task."""
    if name not in ("celery.map", "celery.starmap"):
        return
    inner = app.tasks.get(dict((kwargs or {}).get("task") or {}).get("task", ""))
    if getattr(inner, "is_ledger_task", False):
        raise TypeError(UNPACKED)


UNPACKED = (
    "map, starmap and chunks run the bodies of many jobs inside one plain task; use "
    "enqueue_many(task, payloads), or group(task.s(x) for x in ...)"
)


# --- the parts of a call ------------------------------------------------------------------


def announced(task: Any, args: Any, kwargs: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """The headers that travel with the job, after whoever listens to Celery's publish signals.

    Both signals are sent: tracing opens a span in the first and closes it in the second.
    """
    headers = dict(options.get("headers") or {})
    # Sentry nests a copy for versions of Celery that lost the outer one.
    headers.update(headers.pop("headers", None) or {})
    if name := options.get("periodic_task_name"):
        headers["periodic_task_name"] = name
    if signals.before_task_publish.receivers or signals.after_task_publish.receivers:
        headers = published(task, args, kwargs, options, headers)
    carried = carried_headers(task, options)
    return {**headers, **({"celery": carried} if carried else {})}


def published(
    task: Any, args: Any, kwargs: Any, options: Mapping[str, Any], headers: dict[str, Any]
) -> dict[str, Any]:
    reserved = {
        "lang": "py", "task": task.name, "id": options["task_id"], "retries": 0,
        "root_id": options.get("root_id") or options["task_id"],
        "parent_id": options.get("parent_id"), "origin": "ledger",
    }  # fmt: skip
    headers = {**headers, **reserved}
    message: dict[str, Any] = {
        "body": (args or (), kwargs or {}, {}),
        "exchange": "",
        "routing_key": queue_name(options.get("queue")) or task.queue,
        "headers": headers,
    }
    signals.before_task_publish.send(
        sender=task.name, properties={}, declare=[], retry_policy={}, **message
    )
    signals.after_task_publish.send(sender=task.name, **message)
    return {name: value for name, value in headers.items() if name not in reserved}


def carried_headers(task: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Links, chains, groups and stamps, under the names of the worker's request."""
    carried = {name: options.get(name) for name in CARRIED}
    parent = task.app.current_worker_task
    if parent is not None:
        carried["root_id"] = carried["root_id"] or parent.request.root_id or parent.request.id
        carried["parent_id"] = carried["parent_id"] or parent.request.id
    carried["group"] = options.get("group_id")
    carried["callbacks"] = signatures(options.get("link"))
    carried["errbacks"] = signatures(options.get("link_error"))
    carried["chain"] = signatures(options.get("chain"))
    carried["stamps"] = {
        name: maybe_list(options.get(name)) for name in options.get("stamped_headers") or ()
    }
    if options.get("ignore_result") not in (None, task.ignore_result):
        carried["ignore_result"] = options["ignore_result"]
    return {name: value for name, value in carried.items() if value not in (None, [], {})}


def signatures(linked: Any) -> Any:
    """As JSON; ``tasks.links.restored`` is the way back. Kombu's also knows dates and UUIDs."""
    return json.loads(kombu_json.dumps(maybe_list(linked))) if linked else []


def priority_of(task: Any, options: Mapping[str, Any]) -> int | None:
    """None: the task's own. A child inherits where the project says so, as in Celery."""
    if options.get("priority") is None and task.app.conf.task_inherit_parent_priority:
        run = current_run()
        return None if run is NO_RUN else run.claim.priority
    return options.get("priority")


def routed_queue(task: Any) -> str | None:
    """What the setting ``task_routes`` says about a task that names no queue."""
    app: Celery = task.app
    if not app.conf.task_routes:
        return None
    route = app.amqp.router.lookup_route(task.name, (), {}, {}, task) or {}
    if route and "queue" not in route:
        raise TypeError(f"task_routes of {task.name}: name a queue, not {', '.join(route)}")
    return queue_name(route.get("queue"))


def queue_name(queue: Any) -> str | None:
    """Of a kombu Queue, or the name itself."""
    name: str | None = getattr(queue, "name", queue)
    return name


def moment(app: Celery, at: Any, countdown: float | None) -> datetime | None:
    """Celery takes a moment, its ISO form, or seconds from now."""
    if countdown is not None:
        return datetime.now(UTC) + timedelta(seconds=countdown)
    if isinstance(at, int | float):
        return datetime.now(UTC) + timedelta(seconds=at)
    if isinstance(at, str):
        at = datetime.fromisoformat(at)
    if isinstance(at, datetime) and at.tzinfo is None:
        return at.replace(tzinfo=app.timezone)
    return at  # type: ignore[no-any-return]  # what is no datetime is refused by enqueue


def job_id_of_call(task_id: Any) -> UUID | None:
    if task_id is None:
        return None
    try:
        return UUID(str(task_id))
    except ValueError:
        raise TypeError(
            f"task_id must be a UUID; to name the intent, enqueue(task, payload, key={task_id!r})"
        ) from None
