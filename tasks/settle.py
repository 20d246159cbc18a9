"""How a run ends: one conditional statement, with the fence of the run.

A statement that changes nothing means that the job has moved on without this run; that is
counted and said, and nothing else happens.
"""

from __future__ import annotations

import json
import math
import time
import traceback as tracebacks
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import structlog
from celery.exceptions import Ignore, Reject, Retry, TimeLimitExceeded
from django.db import DatabaseError, transaction

from tasks import connections, ledger, links, metrics, sql, wake
from tasks.board import BOARD
from tasks.errors import Cancelled, InvalidPayload, LeaseLost
from tasks.ledger import ErrorReport
from tasks.masking import masked
from tasks.run import NO_RUN, Run, open_transactions
from tasks.safe_result import safe_result
from tasks.states import Failure, Outcome, State
from tasks.wiring import topology

log = structlog.get_logger(__name__)

# Seconds for which a run that ended waits for a database that is away. Its effects have happened,
# only the record is missing: giving up means doing them again.
DATABASE_PATIENCE_S = 60.0
# Seconds after which a job that Celery's Reject(requeue=True) sent back runs again.
REQUEUE_DELAY_S = 1.0
# A body that computes a delay may compute nonsense; PostgreSQL knows dates that Python does not.
LONGEST_DELAY_S = 365 * 24 * 3600.0
IGNORED_RESULT = "ignored by the task"


def succeeded(run: Run, result: Any, *, keeps: bool = True) -> bool:
    text, note = safe_result(result)
    values = {"result": text, "note": note} if keeps else {"result": "null", "note": IGNORED_RESULT}
    if run.followers is None and run.batch is not None and not run.task.atomic:
        return bool(run.batch.succeeded(run, **values))
    if run.followers is None:
        return end(run, Outcome.SUCCEEDED, ledger.succeed, **values)
    if note:
        raise links.NotFollowed(f"the result cannot be passed on: {note}")
    followers = {"followers": run.followers, "value": json.loads(text)}
    return end(run, Outcome.SUCCEEDED, links.succeed, **values, **followers)


def retry(run: Run, retry: Retry, traceback: str) -> None:
    delay_s = bounded(seconds_until(retry))
    error = report_of(retry.exc or retry, traceback, run)
    end(run, Outcome.RETRY, ledger.retry, delay_s=delay_s, error=error)


def failed(run: Run, exc: BaseException, traceback: str) -> bool:
    return end(
        run,
        Outcome.FAILED,
        ledger.fail,
        failure=failure_of(run, exc),
        error=report_of(exc, traceback, run),
        dead_letter=getattr(exc, "dead_letter", True),
    )


def interrupted(run: Run, exc: Exception) -> None:
    """The body stopped without an outcome of its own."""
    if isinstance(exc, LeaseLost):
        mark_over(run)
        log.warning("lease_lost", fence=run.claim.fence)
    elif isinstance(exc, Cancelled):
        end(run, Outcome.CANCELLED, ledger.end_cancelled, reason=str(exc))
    else:
        given_back(run, float(getattr(exc, "seconds", getattr(exc, "retry_after", 0))))


def given_back(run: Run, delay_s: float) -> None:
    """Free, but not for ever: what never has an outcome fails some day."""
    after_s = topology().queue(run.claim.queue).give_up_after.total_seconds()
    delay_s = bounded(delay_s)
    end(run, "given_back", ledger.give_back, delay_s=delay_s, give_up_after_s=after_s)


def held(run: Run, exc: InvalidPayload) -> None:
    """This release cannot run the job; another one may."""
    log.warning("job_incompatible", task=run.claim.task, problem=str(exc))
    end(run, "held", ledger.hold_incompatible, problem=str(exc))


def unreported(run: Run, outcome: Any) -> None:
    """Celery's Ignore and Reject leave no result: here they are outcomes like any other."""
    exc: Any = getattr(outcome.info, "retval", None)
    if isinstance(exc, Reject) and getattr(exc, "requeue", False):
        given_back(run, REQUEUE_DELAY_S)
    elif isinstance(exc, Ignore):
        end(run, Outcome.CANCELLED, ledger.end_cancelled, reason=f"ignored: {exc}")
    else:
        failed(run, exc or RuntimeError("the run ended without an outcome"), "")


def end(run: Run, outcome: str, write: Callable[..., Any], **values: Any) -> bool:
    """End the run with its fence. False: the job has moved on without it, or nobody knows.

    ``write`` may answer with the state that it left where that is not what ``outcome`` says.
    """
    mark_over(run)
    claim = run.claim
    try:
        happened = connections.persisting(
            write, claim.id, claim.fence, deadline_s=DATABASE_PATIENCE_S, **values
        )
    except DatabaseError as exc:
        if open_transactions() > run.transactions:
            raise  # the transaction of an atomic body is lost, and the body with it
        log.error("settle_failed", outcome=outcome, fence=claim.fence, error=str(exc))
        return False
    if not happened:
        metrics.refused_write(write.__name__)
        log.warning("settle_refused", outcome=outcome, fence=claim.fence)
        return False
    if happened == State.FAILED:
        outcome = Outcome.FAILED
        log.error("job_gave_up", fence=claim.fence)
    metrics.settled(claim.queue, claim.task, outcome)
    log.info("job_settled", outcome=outcome, fence=claim.fence)
    is_due = outcome in (Outcome.RETRY, "given_back") and values.get("delay_s", 0.0) <= 0
    if is_due or claim.is_ordered:  # the job itself, or the next one of its key
        wake.after_commit()
    return True


def mark_over(run: Run) -> None:
    """The body has ended: nobody needs to end it any more."""
    run.settled = True
    BOARD.note_over(run.claim.id, run.claim.dispatch_no)


def lost(job_id: UUID, dispatch_no: int, task: Any, exc: BaseException) -> bool:
    """From a pool's parent: the child that ran this message is gone. True: the job has failed.

    After the drain deadline children end because they are told to, and give back themselves.
    """
    if BOARD.is_draining:
        return False
    with waiting_briefly():
        fence = ledger.fence_of_dispatch(job_id, dispatch_no)
        if fence is None:
            return False
        has_failed = end_lost(job_id, fence, task, exc)
    log.error("run_lost", job_id=str(job_id), fence=fence, error=repr(exc), failed=has_failed)
    return has_failed


def end_lost(job_id: UUID, fence: int, task: Any, exc: BaseException) -> bool:
    if isinstance(exc, TimeLimitExceeded):
        error = report_of(exc, "")
        return ledger.fail(job_id, fence, failure=Failure.TIME_LIMIT, error=error)
    reason = str(exc) or type(exc).__name__
    state = ledger.crash(job_id, fence, max_crashes=task.max_crashes, reason=reason)
    return state == State.FAILED


def terminated(job_id: UUID, dispatch_no: int, reason: str) -> bool:
    """From a pool's parent: the child was ended on request (``revoke(terminate=True)``)."""
    with waiting_briefly():
        fence = ledger.fence_of_dispatch(job_id, dispatch_no)
        return fence is not None and ledger.end_cancelled(job_id, fence, reason=reason)


@contextmanager
def waiting_briefly() -> Iterator[None]:
    """The loop of a worker stands still meanwhile. Raises OperationalError then, and the lease
    ends: the relay sees to it.

    A child that died in a long statement leaves its row locked until PostgreSQL, which does not
    notice before, has ended that statement.
    """
    with transaction.atomic():
        sql.set_lock_timeout(str(sql.LOCK_TIMEOUT_MS))
        yield


def report_of(exc: BaseException, traceback: str, run: Run = NO_RUN) -> ErrorReport:
    """What is recorded of an error, without the sensitive arguments of the run."""
    text = str(traceback or "") or "".join(tracebacks.format_exception(exc))
    kind = type(exc)
    name = f"{kind.__module__}.{kind.__qualname__}"
    return ErrorReport.of(name, masked(str(exc), run), masked(text, run))


def bounded(delay_s: float) -> float:
    """Between now and a year from now; what is no number means now."""
    return 0.0 if math.isnan(delay_s) else min(max(delay_s, 0.0), LONGEST_DELAY_S)


def failure_of(run: Run, exc: BaseException) -> Failure:
    if isinstance(exc, TimeLimitExceeded):
        return Failure.TIME_LIMIT
    return Failure.EXHAUSTED if run.exhausted else Failure.ERROR


def seconds_until(retry: Retry) -> float:
    """Celery keeps the delay of a Retry as seconds or as a moment."""
    when: Any = retry.when
    if when is None or isinstance(when, int | float):
        return float(when or 0.0)
    return float(max(0.0, when.timestamp() - time.time()))
