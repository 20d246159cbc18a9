"""Messages of plain Celery, from before a task was a LedgerTask, become jobs."""

from __future__ import annotations

import json
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

import structlog
from celery.app.task import Context
from kombu.utils import json as kombu_json

from tasks import admission, connections, ledger
from tasks.enqueue import Item, accept
from tasks.signature import signature_of

log = structlog.get_logger(__name__)

# A message is adopted once, and that is the first dispatch of its job.
ADOPTED_DISPATCH_NO = 1
INT4_MAX = 2**31 - 1
# Seconds for which an adoption waits for a database that is away.
DATABASE_PATIENCE_S = 10.0
# What such a message brings along, under the names of Celery's request.
ADOPTED = ("callbacks", "errbacks", "chain", "group", "group_index", "root_id", "parent_id")


def adopt(
    task: Any, message_id: str, args: Any, kwargs: Any, request: dict[str, Any]
) -> tuple[UUID, int]:
    """A message of plain Celery, from before the task was a LedgerTask, becomes a job.

    Its first delivery is claimed here. One more finds the job, and leaves it to the relay.
    """
    job_id = job_id_of(message_id)
    item = Item(
        signature_of(task).bind(args, kwargs),
        key=f"celery:{job_id}",
        job_id=job_id,
        queue=queue_of(task, request),
        headers=adopted_headers(message_id, request),
    )
    with admission.waived():  # the broker has accepted it already
        answer = connections.persisting(accept, task, item, deadline_s=DATABASE_PATIENCE_S)
    log.info("message_adopted", job_id=str(answer.job_id), task=task.name, created=answer.created)
    if not answer.created:
        return job_id, 0
    return job_id, connections.reconnecting(ledger.dispatch_here, job_id)


def adopted_headers(message_id: str, request: dict[str, Any]) -> dict[str, Any]:
    """What the message says beside its arguments: custom headers, links, chain and parents."""
    if request.get("chord"):
        log.warning("adopted_without_chord", message_id=message_id, task=request.get("task"))
    carried = {name: request.get(name) for name in ADOPTED}
    if carried["root_id"] == message_id:
        carried["root_id"] = None
    celery = {name: value for name, value in carried.items() if value}
    celery = json.loads(kombu_json.dumps(celery))
    custom = Context(request).headers or {}
    return {**custom, **({"celery": celery} if celery else {})}


def park(
    task: Any, message_id: str, args: Any, kwargs: Any, request: dict[str, Any], *, reason: str
) -> None:
    """Keep a message that cannot become a job: the broker forgets it now."""
    log.error("message_parked", message_id=message_id, task=task.name, reason=reason)
    body = json.dumps([args, kwargs], default=repr).encode()
    headers = json.dumps({"id": message_id, **adopted_headers(message_id, request)}, default=repr)
    connections.persisting(
        ledger.park,
        deadline_s=DATABASE_PATIENCE_S,
        queue=queue_of(task, request),
        reason=reason,
        task=task.name,
        headers=headers,
        body=body,
    )


def dispatch_no_of(carried: object) -> int:
    """What a message carries, or for one that carries nothing, what it got when it was adopted.

    A stranger may have written what no dispatch has.
    """
    return carried if type(carried) is int and 0 <= carried <= INT4_MAX else ADOPTED_DISPATCH_NO


def job_id_of(message_id: str) -> UUID:
    """Celery ids are UUIDs unless somebody chose one."""
    try:
        return UUID(message_id)
    except ValueError:
        return uuid5(NAMESPACE_URL, f"celery:{message_id}")


def queue_of(task: Any, request: dict[str, Any]) -> str:
    """The queue that the message came from."""
    delivery = request.get("delivery_info") or {}
    return str(delivery.get("routing_key") or task.queue or task.app.conf.task_default_queue)
