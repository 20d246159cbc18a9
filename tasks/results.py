"""Celery's result backend over the ledger: results are read from it, runs are settled through it.

``AsyncResult`` works as usual: ``.status``, ``.get()``, ``.ready()``. There is nothing else to
store or to expire: the job is the result.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from celery import states
from celery.backends.base import BaseBackend
from celery.exceptions import Retry

from tasks import ledger, wake
from tasks.execute import (
    job_id_of,
    settle_failed,
    settle_lost,
    settle_retry,
    settle_succeeded,
)
from tasks.run import NO_RUN, Run, current_run
from tasks.states import State

STATUS = {
    State.QUEUED: states.PENDING,
    State.DISPATCHED: states.PENDING,
    State.RUNNING: states.STARTED,
    State.SUCCEEDED: states.SUCCESS,
    State.FAILED: states.FAILURE,
    State.CANCELLED: states.REVOKED,
}


class LedgerBackend(BaseBackend):
    """Plain tasks have no row here, so their results are not kept."""

    persistent = True
    supports_autoexpire = True

    # --- the tracer reports -----------------------------------------------------------

    def mark_as_done(
        self, task_id: str, result: Any, request: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        run = run_of(task_id)
        if run is not None:
            settle_succeeded(run, result)

    def mark_as_retry(
        self, task_id: str, exc: Any, traceback: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        run = run_of(task_id)
        if run is not None:
            settle_retry(run, run.retry or Retry(exc=exc), traceback)

    def mark_as_failure(
        self,
        task_id: str,
        exc: BaseException,
        traceback: Any = None,
        request: Any = None,
        store_result: bool = True,
        call_errbacks: bool = True,
        state: str = states.FAILURE,
    ) -> None:
        run = run_of(task_id)
        if run is not None:
            settle_failed(run, exc, traceback)
        elif (dispatch_no := getattr(request, "dispatch_no", None)) is not None:
            settle_lost(job_id_of(task_id), dispatch_no, self.app.tasks[request.task], exc)
        if request is not None and call_errbacks and request.errbacks:
            self._call_task_errbacks(request, exc, traceback)

    def mark_as_revoked(self, task_id: str, *args: Any, **kwargs: Any) -> None:
        """The ledger decides what is cancelled (``tasks.control``); a worker only hears of it."""

    def store_result(self, task_id: str, result: Any, state: str, *args: Any, **kwargs: Any) -> Any:
        """Custom states of plain tasks are not kept."""
        return result

    # --- callers read -----------------------------------------------------------------

    def _get_task_meta_for(self, task_id: str) -> dict[str, Any]:
        """What AsyncResult calls the meta data of a task."""
        outcome = ledger.outcome_of(job_id_of(task_id))
        if outcome is None:
            return {"status": states.PENDING, "result": None, "task_id": task_id}
        status = STATUS[outcome.state]
        if outcome.attempts and outcome.state in (State.QUEUED, State.DISPATCHED):
            status = states.RETRY
        return {
            "status": status,
            "result": self.value_of(outcome),
            "traceback": outcome.error_traceback or None,
            "task_id": task_id,
            "children": [],
            "date_done": outcome.finished_at,
            "name": outcome.task,
            "retries": outcome.attempts,
        }

    def value_of(self, outcome: ledger.OutcomeOf) -> Any:
        """The return value, or the error as the exception it was."""
        if outcome.state == State.CANCELLED:
            return self.exception_to_python(
                {
                    "exc_type": "TaskRevokedError",
                    "exc_module": "celery.exceptions",
                    "exc_message": outcome.cancel_reason or "cancelled",
                }
            )
        if outcome.error_type and outcome.state != State.SUCCEEDED:
            module, _, name = outcome.error_type.rpartition(".")
            return self.exception_to_python(
                {"exc_type": name, "exc_module": module, "exc_message": [outcome.error_message]}
            )
        return outcome.result

    def wait_for_pending(self, result: Any, *args: Any, **kwargs: Any) -> Any:
        refuse_to_hang(job_id_of(result.id))
        return super().wait_for_pending(result, *args, **kwargs)

    def is_cached(self, task_id: str) -> bool:
        return task_id in self._cache


def run_of(task_id: str) -> Run | None:
    """The run of this very task in this process; None in a pool's parent and for plain tasks."""
    run = current_run()
    return run if run is not NO_RUN and str(run.job_id) == str(task_id) else None


def refuse_to_hang(job_id: UUID) -> None:
    if wake.waits_for_commit(job_id):
        raise RuntimeError(
            f"job {job_id} was enqueued in the transaction that is still open here: no worker can "
            "see it. Commit first, then call .get()"
        )
