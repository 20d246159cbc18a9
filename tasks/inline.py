"""Runs jobs in this very process, through the same transitions as a worker.

For eager mode and tests: no broker, no relay, no worker; the ledger, the serialisation and
Celery's tracer are the real ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from uuid import UUID

from celery.app import trace
from celery.exceptions import Ignore, Retry
from django.db import connection
from psycopg.pq import TransactionStatus

from tasks import ledger
from tasks.registry import task_of

WORKER = "inline"
# Runs of one job until eager mode takes it for one that never ends.
MOST_RUNS = 1000
EXPIRED_AT_ONCE = 100

# Jobs that follow the one that runs here. They were accepted in the transaction that settles it
# and run after that.
_followers: ContextVar[list[UUID] | None] = ContextVar("tasks_followers", default=None)
_is_settling: ContextVar[bool] = ContextVar("tasks_is_settling", default=False)


def run_to_the_end(job_id: UUID) -> BaseException | None:
    """Eager mode: run the job and what follows it, retries without their delay.

    What the last run raised, None if it succeeded or was not to be run.
    """
    followers = _followers.get()
    if followers is not None and _is_settling.get():
        followers.append(job_id)
        return None
    outcome = None
    for _ in range(MOST_RUNS):
        last, outcome = outcome, run_job(job_id, is_eager=True)
        if outcome is None:
            return raised_by(last)
    raise RuntimeError(f"job {job_id} ran {MOST_RUNS} times and still wants to run again")


def run_job(job_id: UUID, *, is_eager: bool = False) -> Any:
    """Run one queued job now, due or not; the tracer's answer.

    None when it is not queued (terminal, or running elsewhere), or has expired.
    """
    ledger.expire(EXPIRED_AT_ONCE)
    dispatch_no = ledger.dispatch_here(job_id)
    if not dispatch_no:
        return None
    outcome = ledger.outcome_of(job_id)
    assert outcome is not None
    task = traced(task_of(outcome.task))
    request = request_for(job_id, task.name, outcome.queue, dispatch_no, is_eager)
    followers: list[UUID] = []
    token = _followers.set(followers)
    try:
        answer = task.__trace__(str(job_id), (), {}, request)
    finally:
        _followers.reset(token)
    for follower in followers:
        run_to_the_end(follower)
    return answer


def raised_by(outcome: Any) -> BaseException | None:
    """The exception inside a tracer's answer, unless it only steered the run."""
    exc = getattr(outcome and outcome.info, "retval", None)
    return exc if isinstance(exc, BaseException) and not isinstance(exc, Retry | Ignore) else None


def traced(task: Any) -> Any:
    if task.__trace__ is None:
        # Looked up now: Sentry replaces the function.
        task.__trace__ = trace.build_tracer(task.name, task, app=task.app)
    return task


def request_for(
    job_id: UUID, task: str, queue: str, dispatch_no: int, is_eager: bool
) -> dict[str, Any]:
    """The request that a worker would have made of the message."""
    return {
        "id": str(job_id),
        "task": task,
        "root_id": str(job_id),
        "dispatch_no": dispatch_no,
        "hostname": WORKER,
        "delivery_info": {"exchange": "", "routing_key": queue, "is_eager": is_eager},
        "is_eager": is_eager,
        "is_inline": True,
    }


# --- inside somebody's transaction --------------------------------------------------------


@contextmanager
def settling() -> Iterator[None]:
    """Eager jobs accepted in this block run after it: it may still be rolled back."""
    token = _is_settling.set(True)
    try:
        yield
    finally:
        _is_settling.reset(token)


@contextmanager
def contained() -> Iterator[None]:
    """A body whose SQL failed must not take the caller's transaction with it.

    A worker has none. In a test that runs inside one, the failed statement is rolled back, and
    the outcome can be written.
    """
    if not connection.in_atomic_block:
        yield
        return
    savepoint = str(connection.savepoint())
    try:
        yield
    except BaseException:
        if connection.connection.info.transaction_status == TransactionStatus.INERROR:
            connection.savepoint_rollback(savepoint)
        raise
