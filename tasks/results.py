"""Celery's result backend over the ledger: results are read from it, runs are settled through it.

``AsyncResult`` works as usual: ``.status``, ``.get()``, ``.ready()``. There is nothing else to
store or to expire: the job is the result.
"""

from __future__ import annotations

from typing import Any, NoReturn
from uuid import UUID

import structlog
from celery import states
from celery.app.task import Context
from celery.backends.base import BaseBackend
from celery.exceptions import Retry
from django.db import DatabaseError

from tasks import adopt, batch, ledger, links, settle, wake
from tasks.adopt import job_id_of
from tasks.ledger import OutcomeOf
from tasks.run import NO_RUN, Run, current_run
from tasks.safe_result import safe_result
from tasks.states import TERMINAL, Failure, State
from tasks.strict_json import dumps

log = structlog.get_logger(__name__)

STATUS = {
    State.QUEUED: states.PENDING,
    State.DISPATCHED: states.PENDING,
    State.RUNNING: states.STARTED,
    State.SUCCEEDED: states.SUCCESS,
    State.FAILED: states.FAILURE,
    State.CANCELLED: states.REVOKED,
}
# Bytes of JSON that update_state(meta=...) may leave in the row, again and again.
PROGRESS_MAX_BYTES = 16 * 1024


class LedgerBackend(BaseBackend):
    """``of_jobs``: asked for jobs only. The backend of an app is asked for plain tasks too."""

    app: Any
    persistent = True
    supports_autoexpire = True

    def __init__(self, app: Any, *args: Any, of_jobs: bool = False, **kwargs: Any) -> None:
        super().__init__(app, *args, **kwargs)
        self.of_jobs = of_jobs

    # --- the tracer reports -----------------------------------------------------------

    def mark_as_done(
        self,
        task_id: str,
        result: Any,
        request: Any = None,
        store_result: bool = True,
        state: str = states.SUCCESS,
    ) -> None:
        run = run_of(task_id)
        if run is not None and not run.settled:
            settle.succeeded(run, result, keeps=store_result)

    def mark_as_retry(
        self, task_id: str, exc: Any, traceback: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        run = run_of(task_id)
        if run is not None:
            settle.retry(run, run.retry or Retry(exc=exc), traceback)

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
            failed = settle.failed(run, exc, traceback)
        elif getattr(request, "batch", None):
            self.mark_batch_as_lost(task_id, exc, request, traceback)
            return
        elif self.is_of_a_job(request):
            failed = self.mark_as_lost(task_id, exc, request)
        else:
            failed = True  # a plain task: only its errbacks matter
        if failed and request is not None and call_errbacks and request.errbacks:
            self._call_task_errbacks(request, exc, traceback)  # type: ignore[attr-defined]

    def is_of_a_job(self, request: Any) -> bool:
        """A message of a ledger task is one, also when it was only adopted."""
        return request is not None and (
            self.of_jobs or getattr(request, "dispatch_no", None) is not None
        )

    def mark_as_lost(self, task_id: str, exc: BaseException, request: Any) -> bool:
        """In the parent of a pool: its child is gone. True: the job has failed."""
        job_id, task = job_id_of(task_id), self.app.tasks[request.task]
        try:
            if not settle.lost(job_id, dispatch_no_of(request), task, exc):
                return False
            carried = links.restored(ledger.headers_of(job_id).get("celery", {}))
            request.errbacks = carried.get("errbacks")
        except DatabaseError as error:  # the lease ends, and the relay sees to it
            log.error("settle_failed", job_id=task_id, error=str(error))
            return False
        return True

    def mark_batch_as_lost(
        self, message_id: str, exc: BaseException, request: Any, traceback: Any
    ) -> None:
        """The same for all jobs of a message."""
        try:
            for job_id in batch.lost(message_id, request, exc):
                carried = links.restored(ledger.headers_of(job_id).get("celery", {}))
                if carried.get("errbacks"):
                    own = Context(vars(request), id=str(job_id), errbacks=carried["errbacks"])
                    self._call_task_errbacks(own, exc, traceback)  # type: ignore[attr-defined]
        except DatabaseError as error:  # the leases end, and the relay sees to it
            log.error("settle_failed", message_id=message_id, error=str(error))

    def mark_as_revoked(
        self,
        task_id: str,
        reason: str = "",
        request: Any = None,
        store_result: bool = True,
        state: str = states.REVOKED,
    ) -> None:
        """In the parent of a pool: a run was terminated on request."""
        if self.is_of_a_job(request):
            try:
                settle.terminated(job_id_of(task_id), dispatch_no_of(request), reason)
            except DatabaseError as error:
                log.error("settle_failed", job_id=task_id, error=str(error))

    def store_result(
        self, task_id: str, result: Any, state: str | None, *args: Any, **kwargs: Any
    ) -> Any:
        """``update_state`` of the run itself; custom states of plain tasks are not kept."""
        run = run_of(task_id)
        if run is None or state == states.STARTED:
            return result
        if state in states.ALL_STATES:
            raise TypeError(
                f"{state} is an outcome, not a state to set: return, raise, or raise Fail(reason)"
            )
        text, note = safe_result({"state": state, "meta": result}, PROGRESS_MAX_BYTES)
        if note:
            text = dumps({"state": state, "meta": None, "note": note})
        ledger.progress(run.claim.id, run.fence, text)
        return result

    # --- callers read -----------------------------------------------------------------

    def _get_task_meta_for(self, task_id: str) -> dict[str, Any]:
        """What AsyncResult calls the meta data of a task."""
        outcome = ledger.outcome_of(job_id_of(task_id))
        if outcome is None:
            return {"status": states.PENDING, "result": None, "task_id": task_id}
        status, value = self.status_and_value(outcome)
        return {
            "status": status,
            "result": value,
            "traceback": outcome.error_traceback or None,
            "task_id": task_id,
            "children": None,  # the ledger knows the parent of a job, not its children
            "date_done": outcome.finished_at,
            "name": outcome.task,
            "retries": outcome.attempts,
            "queue": outcome.queue,
            "worker": outcome.worker or None,
        }

    def status_and_value(self, outcome: OutcomeOf) -> tuple[str, Any]:
        """Celery's state, and with it the return value, the error or what the run says."""
        if outcome.state == State.CANCELLED:
            return states.REVOKED, self.revoked(outcome.cancel_reason or "cancelled")
        if outcome.failure == Failure.EXPIRED:
            return states.REVOKED, self.revoked("expired")
        if outcome.state == State.FAILED:
            return states.FAILURE, self.error_of(outcome)
        if outcome.state == State.RUNNING:
            return progress_of(outcome)
        if outcome.state in (State.QUEUED, State.DISPATCHED) and outcome.attempts:
            return states.RETRY, self.error_of(outcome)
        return STATUS[outcome.state], outcome.result

    def error_of(self, outcome: OutcomeOf) -> Any:
        """The exception as it was, as far as this process knows its class."""
        module, _, name = outcome.error_type.rpartition(".")
        return self.exception_to_python(
            {"exc_type": name, "exc_module": module, "exc_message": [outcome.error_message]}
        )

    def revoked(self, reason: str) -> Any:
        return self.exception_to_python(
            {
                "exc_type": "TaskRevokedError",
                "exc_module": "celery.exceptions",
                "exc_message": reason,
            }
        )

    def wait_for_pending(self, result: Any, *args: Any, **kwargs: Any) -> Any:
        self.refuse_to_hang(job_id_of(result.id))
        return super().wait_for_pending(result, *args, **kwargs)

    def refuse_to_hang(self, job_id: UUID) -> None:
        outcome = ledger.outcome_of(job_id)
        if outcome is None and not self.of_jobs:
            raise NotImplementedError(
                f"{job_id} is no job, and plain tasks keep no result here: give the task "
                "base=LedgerTask, or set result_backend for the plain ones"
            )
        if outcome is not None and outcome.state in TERMINAL:
            return
        if wake.waits_for_commit(job_id):
            raise RuntimeError(
                f"job {job_id} was enqueued in the transaction that is still open here: no worker "
                "can see it. Commit first, then call .get()"
            )

    def _forget(self, task_id: str) -> None:
        """The caller's copy is gone; the job stays for its retention."""

    def _ensure_not_eager(self) -> None:
        """Eager jobs are in the ledger like all others."""

    # --- what the ledger does not do --------------------------------------------------

    def ensure_chords_allowed(self) -> NoReturn:
        raise NotImplementedError(
            "chords are not supported: let each job of the group enqueue the next step under one "
            "idempotency key, when it finds the others done; the first creates it"
        )

    def apply_chord(self, *args: Any, **kwargs: Any) -> NoReturn:
        self.ensure_chords_allowed()

    def _save_group(self, group_id: str, result: Any) -> NoReturn:
        raise NotImplementedError("keep the ids of the jobs: [result.id for result in group]")

    def _restore_group(self, group_id: str, **kwargs: Any) -> NoReturn:
        self._save_group(group_id, None)

    def _delete_group(self, group_id: str) -> NoReturn:
        self._save_group(group_id, None)


def run_of(task_id: str) -> Run | None:
    """The run of this very task in this process; None in a pool's parent and for plain tasks."""
    run = current_run()
    return run if run is not NO_RUN and str(run.job_id) == str(task_id) else None


def dispatch_no_of(request: Any) -> int:
    return adopt.dispatch_no_of(getattr(request, "dispatch_no", None))


def progress_of(outcome: OutcomeOf) -> tuple[str, Any]:
    """The custom state that a run has set, else STARTED."""
    progress = outcome.progress
    if isinstance(progress, dict) and progress.keys() >= {"state", "meta"}:
        return progress["state"], progress["meta"]
    return states.STARTED, progress
