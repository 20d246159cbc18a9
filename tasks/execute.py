"""What a worker does with one message: claim, run, settle.

The run goes through Celery's own tracer, so signals, Sentry and OpenTelemetry see an
ordinary task. The tracer reports the outcome to the task's result backend
(``tasks.results``), and that is where the run is settled: before the success signal fires.
"""

from __future__ import annotations

import json
import time
import traceback as tracebacks
from collections.abc import Callable
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

import structlog
from billiard.einfo import ExceptionInfo
from celery.app.task import Context
from celery.app.trace import TraceInfo, trace_ok_t
from celery.exceptions import Ignore, Reject, Retry, TimeLimitExceeded
from celery.states import IGNORED, REJECTED
from celery.utils.saferepr import saferepr
from django.db import DatabaseError
from kombu.utils import json as kombu_json

from tasks import connections, inline, ledger, links, metrics, wake
from tasks.enqueue import Item, accept
from tasks.errors import (
    Cancelled,
    Draining,
    InvalidPayload,
    LeaseLost,
    Rejected,
    RetryAfter,
    Snooze,
    TasksError,
)
from tasks.ledger import Claim, ErrorReport
from tasks.payload import mask
from tasks.run import NO_RUN, Run, active, current_run
from tasks.safe_result import safe_result
from tasks.signature import signature_of
from tasks.states import Failure, Outcome, State
from tasks.wiring import release, topology

log = structlog.get_logger(__name__)

Tracer = Callable[[str, Any, Any, dict[str, Any]], Any]

# Seconds for which a claim or a settle waits for a database that is away. Then the message
# is dropped and the relay dispatches the job again, or the lease runs out.
DATABASE_PATIENCE_S = 10.0
# Seconds after which a job that Celery's Reject(requeue=True) sent back runs again.
REQUEUE_DELAY_S = 1.0
IGNORED_RESULT = "ignored by the task"
# What an adopted message brings along, under the names of Celery's request.
ADOPTED = ("callbacks", "errbacks", "chain", "group", "group_index", "root_id", "parent_id")


def execute(
    task: Any, tracer: Tracer, message_id: str, args: Any, kwargs: Any, request: dict[str, Any]
) -> Any:
    """Run the job that a message names, if it is still to be run."""
    try:
        claim = claim_message(task, message_id, args, kwargs, request)
    except Reject as exc:
        return trace_ok_t(ExceptionInfo(internal=True), TraceInfo(REJECTED, exc), 0.0, None)
    if claim is None:
        return ignored("not to be run by this message")
    run = Run(claim, task, deadline=deadline_of(request))
    with active(run), structlog.contextvars.bound_contextvars(job_id=str(claim.id)):
        log.info("job_claimed", task=claim.task, attempt=run.attempt, fence=claim.fence)
        arguments = arguments_of(run)
        if arguments is None:
            return ignored("the payload no longer fits the task")
        outcome = tracer(str(claim.id), (), arguments, request_of(run, request))
        if not run.settled:
            settle_unreported(run, outcome)
    return outcome


def ignored(reason: str) -> Any:
    """The answer that makes Celery acknowledge a message without reporting a result."""
    try:
        raise Ignore(reason)
    except Ignore as exc:
        return trace_ok_t(ExceptionInfo(internal=True), TraceInfo(IGNORED, exc), 0.0, None)


# --- claim -------------------------------------------------------------------------------


def claim_message(
    task: Any, message_id: str, args: Any, kwargs: Any, request: dict[str, Any]
) -> Claim | None:
    """Take the job. None: a repeat, a stale message, or the database stays away.

    A message that only the broker knows goes back to it then (Reject).
    """
    try:
        job_id, dispatch_no = address_of(task, message_id, args, kwargs, request)
        claim = connections.persisting(
            ledger.claim,
            job_id,
            dispatch_no,
            deadline_s=DATABASE_PATIENCE_S,
            worker=str(request.get("hostname") or ""),
            release=release(),
            lease_s=topology().queue(queue_of(task, request)).lease,
        )
    except DatabaseError as exc:
        log.error("claim_failed", job_id=message_id, error=str(exc))
        if "dispatch_no" not in request:
            raise Reject(exc, requeue=True) from exc
        return None
    if claim is None:
        log.info("message_is_stale", job_id=str(job_id), dispatch_no=dispatch_no)
    return claim


def address_of(
    task: Any, message_id: str, args: Any, kwargs: Any, request: dict[str, Any]
) -> tuple[UUID, int]:
    """The job and the dispatch that a message means. Dispatch 0 is none that can be claimed."""
    dispatch_no = request.get("dispatch_no")
    if isinstance(dispatch_no, int):
        return UUID(message_id), dispatch_no
    try:
        return adopt(task, message_id, args, kwargs, request)
    except TasksError as exc:
        park(task, message_id, args, kwargs, request, reason=f"cannot become a job: {exc}")
        return job_id_of(message_id), 0


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


# --- run ---------------------------------------------------------------------------------


def arguments_of(run: Run) -> dict[str, Any] | None:
    """The payload as the types of the signature; None, and a dead letter, when it does not fit."""
    try:
        return signature_of(run.task).load(run.claim.payload)
    except InvalidPayload as exc:
        settle_failed(run, exc, "")
        return None


def request_of(run: Run, request: dict[str, Any]) -> dict[str, Any]:
    """What the body finds in ``self.request``: the ledger's counters and the caller's headers."""
    claim = run.claim
    kept = dict(claim.headers or {})
    celery = links.restored(kept.pop("celery", {}))
    sensitive = run.task.sensitive
    return {
        **kept,
        **request,
        **celery,
        "headers": kept,  # never None: Celery would fill in what it does not know of the message
        "retries": claim.attempts,
        "id": str(claim.id),
        "delivery_info": {**(request.get("delivery_info") or {}), "priority": claim.priority},
        # Celery logs what stands here in place of the arguments.
        "kwargsrepr": saferepr(mask(claim.payload, sensitive)) if sensitive else "",
    }


def deadline_of(request: dict[str, Any]) -> float | None:
    limits = request.get("timelimit") or (None, None)
    return time.monotonic() + limits[0] if limits[0] else None


def call_body(task: Any, args: Any, kwargs: Any) -> Any:
    """Call the body and turn our own signals into what Celery's tracer understands."""
    run = current_run()
    run.started = True
    try:
        with inline.contained():
            result = task.run(*args, **kwargs)
    except RetryAfter as exc:
        raise task.retry(exc=exc, countdown=exc.seconds) from exc
    except (Snooze, Draining, Rejected, Cancelled, LeaseLost) as exc:
        settle_interrupted(run, exc)
        raise Ignore(str(exc)) from exc
    except (Retry, Ignore, Reject):
        raise
    except Exception as exc:
        if run.retry is not None:  # self.retry(throw=False), then this
            raise run.retry from exc
        raise
    if run.retry is not None:
        raise run.retry
    run.followers = links.taken_from(task)
    return result


# --- settle ------------------------------------------------------------------------------


def settle_succeeded(run: Run, result: Any, *, keeps: bool = True) -> None:
    text, note = safe_result(result)
    values = {"result": text, "note": note} if keeps else {"result": "null", "note": IGNORED_RESULT}
    if run.followers is None:
        settle(run, Outcome.SUCCEEDED, ledger.succeed, **values)
        return
    if note:
        raise links.NotFollowed(f"the result cannot be passed on: {note}")
    followers = {"followers": run.followers, "value": json.loads(text)}
    settle(run, Outcome.SUCCEEDED, links.succeed, **values, **followers)


def settle_retry(run: Run, retry: Retry, traceback: str) -> None:
    delay_s = seconds_until(retry)
    error = report_of(retry.exc or retry, traceback)
    settle(run, Outcome.RETRY, ledger.retry, delay_s=delay_s, error=error)


def settle_failed(run: Run, exc: BaseException, traceback: str) -> bool:
    return settle(
        run,
        Outcome.FAILED,
        ledger.fail,
        failure=failure_of(run),
        error=report_of(exc, traceback),
        dead_letter=getattr(exc, "dead_letter", True),
    )


def settle_interrupted(run: Run, exc: Exception) -> None:
    """The body stopped without an outcome of its own."""
    if isinstance(exc, LeaseLost):
        run.settled = True
        log.warning("lease_lost", fence=run.claim.fence)
    elif isinstance(exc, Cancelled):
        settle(run, Outcome.CANCELLED, ledger.end_cancelled, reason=str(exc))
    else:
        delay_s = float(getattr(exc, "seconds", getattr(exc, "retry_after", 0)))
        settle(run, "given_back", ledger.give_back, delay_s=delay_s)


def settle_unreported(run: Run, outcome: Any) -> None:
    """Celery's Ignore and Reject leave no result: here they are outcomes like any other."""
    exc: Any = getattr(outcome.info, "retval", None)
    if isinstance(exc, Reject) and getattr(exc, "requeue", False):
        settle(run, "given_back", ledger.give_back, delay_s=REQUEUE_DELAY_S)
    elif isinstance(exc, Ignore):
        settle(run, Outcome.CANCELLED, ledger.end_cancelled, reason=f"ignored: {exc}")
    else:
        settle_failed(run, exc or RuntimeError("the run ended without an outcome"), "")


def settle(run: Run, outcome: str, write: Callable[..., bool], **values: Any) -> bool:
    """End the run with its fence. False: the job has moved on without it, or nobody knows."""
    run.settled = True
    claim = run.claim
    try:
        happened = connections.persisting(
            write, claim.id, claim.fence, deadline_s=DATABASE_PATIENCE_S, **values
        )
    except DatabaseError as exc:
        log.error("settle_failed", outcome=outcome, fence=claim.fence, error=str(exc))
        return False
    if not happened:
        metrics.refused_write(write.__name__)
        log.warning("settle_refused", outcome=outcome, fence=claim.fence)
        return False
    metrics.settled(claim.queue, claim.task, outcome)
    log.info("job_settled", outcome=outcome, fence=claim.fence)
    if outcome in (Outcome.RETRY, "given_back") and values.get("delay_s", 0.0) <= 0:
        wake.after_commit()
    return True


def settle_lost(job_id: UUID, dispatch_no: int, task: Any, exc: BaseException) -> bool:
    """From a pool's parent: the child that ran this message is gone. True: the job has failed."""
    fence = ledger.fence_of_dispatch(job_id, dispatch_no)
    if fence is None:
        return False
    if isinstance(exc, TimeLimitExceeded):
        error = report_of(exc, "")
        failed = ledger.fail(job_id, fence, failure=Failure.TIME_LIMIT, error=error)
    else:
        reason = str(exc) or type(exc).__name__
        state = ledger.crash(job_id, fence, max_crashes=task.max_crashes, reason=reason)
        failed = state == State.FAILED
    log.error("run_lost", job_id=str(job_id), fence=fence, error=repr(exc), failed=failed)
    return failed


def settle_terminated(job_id: UUID, dispatch_no: int, reason: str) -> bool:
    """From a pool's parent: the child was ended on request (``revoke(terminate=True)``)."""
    fence = ledger.fence_of_dispatch(job_id, dispatch_no)
    return fence is not None and ledger.end_cancelled(job_id, fence, reason=reason)


def report_of(exc: BaseException, traceback: str) -> ErrorReport:
    text = str(traceback or "") or "".join(tracebacks.format_exception(exc))
    kind = type(exc)
    return ErrorReport.of(f"{kind.__module__}.{kind.__qualname__}", str(exc), text)


def failure_of(run: Run) -> Failure:
    return Failure.EXHAUSTED if run.exhausted else Failure.ERROR


def seconds_until(retry: Retry) -> float:
    """Celery keeps the delay of a Retry as seconds or as a moment."""
    when: Any = retry.when
    if when is None or isinstance(when, int | float):
        return float(when or 0.0)
    return float(max(0.0, when.timestamp() - time.time()))


def is_running(task: Any) -> bool:
    """Whether the body of this task's job is about to be called, and not by hand inside one."""
    run = current_run()
    return run is not NO_RUN and run.task is task and not run.started
