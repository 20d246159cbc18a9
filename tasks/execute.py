"""What a worker does with one message: claim, run, settle.

The run goes through Celery's own tracer, so signals, Sentry and OpenTelemetry see an
ordinary task. The tracer reports the outcome to the task's result backend
(``tasks.results``), and that is where the run is settled: before the success signal fires.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import structlog
from billiard.einfo import ExceptionInfo
from celery.app.trace import TraceInfo, trace_ok_t
from celery.exceptions import Ignore, Reject, Retry, TimeLimitExceeded
from celery.states import IGNORED, REJECTED
from celery.utils.saferepr import saferepr
from django.db import DatabaseError, transaction

from tasks import adopt, connections, coroutines, inline, ledger, links, settle, wake
from tasks.board import BOARD
from tasks.coroutines import HardLimit
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
from tasks.ledger import Claim
from tasks.payload import mask
from tasks.run import NO_RUN, Run, active, current_run, open_transactions
from tasks.signature import signature_of
from tasks.wiring import release, topology

log = structlog.get_logger(__name__)

Tracer = Callable[[str, Any, Any, dict[str, Any]], Any]
# A job and its dispatch.
Address = tuple[UUID, int]

# Seconds for which a claim waits for a database that is away. Then the message is dropped and
# the relay dispatches the job again.
DATABASE_PATIENCE_S = 10.0


def execute(
    task: Any, tracer: Tracer, message_id: str, args: Any, kwargs: Any, request: dict[str, Any]
) -> Any:
    """Run the job that a message names, if it is still to be run."""
    gate = None if request.get("is_inline") else coroutines.gate_of(task)
    try:
        address = find_address(task, message_id, args, kwargs, request)
        if gate is not None:
            return execute_in_slot(task, tracer, address, request, gate)
        claim = claim_job(task, address, request)
    except Reject as exc:
        return trace_ok_t(ExceptionInfo(internal=True), TraceInfo(REJECTED, exc), 0.0, None)
    if claim is None:
        return ignored("not to be run by this message")
    return run_claimed(Run(claim, task, deadline=deadline_of(request)), tracer, request)


def execute_in_slot(
    task: Any, tracer: Tracer, address: Address, request: dict[str, Any], gate: coroutines.Gate
) -> Any:
    """The same for a coroutine: first its slot, then the claim."""
    with gate.line() as waiter:
        slots = waiter.take(1, lease_s(task, request))
    if not slots:
        give_back_unclaimed(task, [address])
        return ignored("no slot was free for it")
    [slot] = slots
    try:
        claim = claim_job(task, address, request)
        if claim is None:
            return ignored("not to be run by this message")
        run = Run(claim, task, deadline=deadline_of(request), slot=slot)
        with coroutines.claimed(claim.id, claim.dispatch_no):
            return run_claimed(run, tracer, request)
    finally:
        slot.leave()


def give_back_unclaimed(task: Any, jobs: Sequence[Address]) -> None:
    """Jobs that were sent here and cannot start: in the ledger they keep their place in the order,
    and other workers may have a slot."""
    if not jobs:
        return
    log.info("no_slot_was_free", task=task.name, jobs=len(jobs))
    named = [ledger.Dispatched(job_id, task.name, number) for job_id, number in jobs]
    try:
        connections.persisting(ledger.undispatch, named, deadline_s=DATABASE_PATIENCE_S)
    except DatabaseError as exc:  # the relay takes their message for lost
        log.error("not_given_back", jobs=len(jobs), error=str(exc))
    else:
        wake.after_commit()


def run_claimed(run: Run, tracer: Tracer, request: dict[str, Any]) -> Any:
    """Run a job that is ours, and settle it."""
    claim = run.claim
    with active(run), structlog.contextvars.bound_contextvars(job_id=str(claim.id)):
        log.info("job_claimed", task=claim.task, attempt=run.attempt, fence=claim.fence)
        arguments = arguments_of(run)
        if arguments is None:
            return ignored("the payload does not fit the task of this release")
        outcome = tracer(str(claim.id), (), arguments, request_of(run, request))
        if not run.settled:
            settle.unreported(run, outcome)
    return outcome


def ignored(reason: str) -> Any:
    """The answer that makes Celery acknowledge a message without reporting a result."""
    try:
        raise Ignore(reason)
    except Ignore as exc:
        return trace_ok_t(ExceptionInfo(internal=True), TraceInfo(IGNORED, exc), 0.0, None)


# --- claim -------------------------------------------------------------------------------


def find_address(
    task: Any, message_id: str, args: Any, kwargs: Any, request: dict[str, Any]
) -> Address:
    """A message that only the broker knows goes back to it while the database is away (Reject)."""
    try:
        return address_of(task, message_id, args, kwargs, request)
    except DatabaseError as exc:
        log.error("adoption_failed", job_id=message_id, error=str(exc))
        raise Reject(exc, requeue=True) from exc


def claim_job(task: Any, address: Address, request: dict[str, Any]) -> Claim | None:
    """Take the job. None: a repeat, a stale message, or the database stays away.

    A message that only the broker knows goes back to it then (Reject).
    """
    job_id, dispatch_no = address
    try:
        claim = connections.persisting(
            ledger.claim,
            job_id,
            dispatch_no,
            deadline_s=DATABASE_PATIENCE_S,
            worker=str(request.get("hostname") or ""),
            release=release(),
            lease_s=lease_s(task, request),
        )
    except DatabaseError as exc:
        log.error("claim_failed", job_id=str(job_id), error=str(exc))
        if "dispatch_no" not in request:
            raise Reject(exc, requeue=True) from exc
        return None
    if claim is None:
        log.info("message_is_stale", job_id=str(job_id), dispatch_no=dispatch_no)
    return claim


def lease_s(task: Any, request: dict[str, Any]) -> float:
    """On a worker somebody renews it. A run inside its caller's process has it for all its time."""
    queue = topology().queue(adopt.queue_of(task, request))
    if not request.get("is_inline"):
        return queue.lease
    return float(task.time_limit or queue.time_limit) + queue.lease


def address_of(
    task: Any, message_id: str, args: Any, kwargs: Any, request: dict[str, Any]
) -> Address:
    """The job and the dispatch that a message means. Dispatch 0 is none that can be claimed."""
    dispatch_no = request.get("dispatch_no")
    if isinstance(dispatch_no, int):
        # An id that is no UUID was never one of ours, and nothing will be found under this one.
        return adopt.job_id_of(message_id), dispatch_no
    try:
        return adopt.adopt(task, message_id, args, kwargs, request)
    except TasksError as exc:
        adopt.park(task, message_id, args, kwargs, request, reason=f"cannot become a job: {exc}")
        return adopt.job_id_of(message_id), 0


# --- run ---------------------------------------------------------------------------------


def arguments_of(run: Run) -> dict[str, Any] | None:
    """The payload as the types of the signature; None, and the job held, when it does not fit.

    Not a failure: the release that enqueued it is, or was, another one, and can run it.
    """
    try:
        return signature_of(run.task).load(run.claim.payload)
    except InvalidPayload as exc:
        settle.held(run, exc)
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
        result = run_body(run, args, kwargs)
    except SystemExit as exc:
        if not is_told_to_stop(exc):
            raise RuntimeError(f"the body called sys.exit({exc.code!r})") from exc
        settle.interrupted(run, Draining("the worker stopped"))
        raise
    except asyncio.CancelledError as exc:
        raise RuntimeError("the body was cancelled by its own event loop") from exc
    except HardLimit as exc:
        raise TimeLimitExceeded(exc.seconds) from exc
    except RetryAfter as exc:
        pause_for(run, exc)
        raise task.retry(exc=exc, countdown=exc.seconds) from exc
    except (Snooze, Draining, Rejected, Cancelled, LeaseLost) as exc:
        settle.interrupted(run, exc)
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


def pause_for(run: Run, exc: RetryAfter) -> None:
    """A job that was sent to a queue without a downstream still gets its retry."""
    if not exc.pause_downstream:
        return
    try:
        run.pause_downstream(exc.seconds, exc.reason)
    except ValueError as error:
        log.warning("downstream_not_paused", error=str(error))


def run_body(run: Run, args: Any, kwargs: Any) -> Any:
    """The body, and a connection that is as it was before."""
    try:
        with inline.contained():
            run.transactions = open_transactions()
            result = (
                run_atomic(run, args, kwargs) if run.task.atomic else run.task.run(*args, **kwargs)
            )
    except BaseException as exc:
        connections.clean_up(run.transactions)
        write_pause(run)
        if run.told is not None and not is_own_outcome(exc):
            log.info("interrupted_body_raised", told=str(run.told), error=repr(exc))
            raise run.told from exc
        raise
    write_pause(run)
    if connections.clean_up(run.transactions):
        raise RuntimeError("the body left a transaction open; what it wrote there is rolled back")
    return result


def is_own_outcome(exc: BaseException) -> bool:
    """Of a body that was told to stop: not what its cut connection or its cleaning up raised,
    nor the retry that ``autoretry_for`` makes of that."""
    if isinstance(exc, asyncio.CancelledError):
        return False
    return isinstance(exc, TasksError | Ignore | Reject) or not isinstance(exc, Exception)


def write_pause(run: Run) -> None:
    """What the body asked for inside a transaction. Its outcome does not depend on it."""
    try:
        run.write_pause()
    except DatabaseError as exc:
        log.error("downstream_not_paused", error=str(exc))


def is_told_to_stop(exc: SystemExit) -> bool:
    """Whether Celery stops the body: a pool's child exits with -(256 - signal)."""
    return BOARD.is_draining or (isinstance(exc.code, int) and -256 < exc.code < -192)


def run_atomic(run: Run, args: Any, kwargs: Any) -> Any:
    """Body and success commit together, or neither does."""
    committed = threading.Event()
    try:
        with transaction.atomic():
            transaction.on_commit(committed.set)  # before what the body registers
            result = run.task.run(*args, **kwargs)
            run.followers = links.taken_from(run.task)
            if run.retry is None and not settle.succeeded(run, result):
                raise LeaseLost("this run no longer owns its job")
    except BaseException as exc:
        if committed.is_set() and isinstance(exc, Exception):
            # The job has succeeded, and its effects are there: nothing that comes after fails it.
            log.exception("on_commit_failed", task=run.claim.task)
            return result
        if not committed.is_set():
            run.settled = False  # the transaction took it along
        raise
    return result


def is_running(task: Any) -> bool:
    """Whether the body of this task's job is about to be called, and not by hand inside one."""
    run = current_run()
    return run is not NO_RUN and run.task is task and not run.started
