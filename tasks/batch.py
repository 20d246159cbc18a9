"""What a worker does with a message that names several jobs: claim all, run each, settle together.

Each job is run as if it had come alone: with a lease, a fence, a request, signals and an outcome of
its own. Plain bodies run one after the other, coroutines at once within the slots of the worker.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any
from uuid import UUID

import structlog
from celery.app.trace import trace_ok_t
from celery.exceptions import TimeLimitExceeded
from django.db import DatabaseError

from tasks import adopt, batch_ledger, connections, coroutines, execute, ledger, settle, wake
from tasks.batch_ledger import Named, Success
from tasks.board import BOARD
from tasks.execute import DATABASE_PATIENCE_S, Tracer
from tasks.flush import BUDGET_S, KEEPER, Batch
from tasks.journal import JOBS_MAX, JOURNAL, Entry, Stage
from tasks.run import Run
from tasks.states import Failure, Outcome
from tasks.wiring import release, topology

log = structlog.get_logger(__name__)

# Seconds for which a batch of coroutines waits for free slots. Then its message is dropped, and
# the relay sends the jobs again.
SLOTS_PATIENCE_S = 60.0


def jobs_of(request: Any) -> list[Named]:
    """The jobs that a message names; none when it is a message of one job."""
    return [(UUID(job_id), dispatch_no) for job_id, dispatch_no in request.get("batch") or ()]


def is_batch(value: Any) -> bool:
    """Whether we can have sent this header: any other is a stranger's."""
    return value is None or (
        isinstance(value, list | tuple)
        and 0 < len(value) <= JOBS_MAX
        and all(isinstance(job, list | tuple) and len(job) == 2 for job in value)
        and all(is_job(*job) for job in value)
    )


def is_job(job_id: Any, dispatch_no: Any) -> bool:
    try:
        UUID(job_id)
    except (ValueError, TypeError, AttributeError):
        return False
    return type(dispatch_no) is int and 0 < dispatch_no <= adopt.INT4_MAX


# --- claim, run, settle --------------------------------------------------------------------


def execute_batch(task: Any, tracer: Tracer, message_id: str, request: dict[str, Any]) -> Any:
    """Run those of the named jobs that are still to be run. What it returns has Celery
    acknowledge the message."""
    began_at = time.monotonic()
    jobs = jobs_of(request)
    at_once = coroutines.slots_for(task)
    with coroutines.slots_taken(min(len(jobs), at_once), SLOTS_PATIENCE_S) as taken:
        claims = claim(task, message_id, jobs, request) if taken else []
        if not claims:
            return execute.ignored("none of its jobs is to be run by this message")
        runs = [Run(claimed, task) for claimed in claims]
        numbers = {job_id: number for number, (job_id, _) in enumerate(jobs)}
        claimed = [numbers[run.claim.id] for run in runs]
        with JOURNAL.place(UUID(message_id), claimed) as place:
            batch = Batch(runs, numbers, place, began_at=began_at)
            try:
                with KEEPER.keeping(batch):
                    run_all(batch, tracer, request, at_once)
            finally:
                batch.close()
    return trace_ok_t(None, None, time.monotonic() - began_at, f"{len(claims)} jobs")


def claim(
    task: Any, message_id: str, jobs: Sequence[Named], request: dict[str, Any]
) -> list[ledger.Claim]:
    try:
        claims = connections.persisting(
            batch_ledger.claim,
            jobs,
            deadline_s=DATABASE_PATIENCE_S,
            worker=str(request.get("hostname") or ""),
            release=release(),
            lease_s=float(topology().queue(adopt.queue_of(task, request)).lease),
        )
    except DatabaseError as exc:  # the relay sends them again
        log.error("claim_failed", message_id=message_id, jobs=len(jobs), error=str(exc))
        return []
    if len(claims) < len(jobs):
        log.info("message_is_stale", message_id=message_id, jobs=len(jobs), claimed=len(claims))
    order = {job_id: number for number, (job_id, _) in enumerate(jobs)}
    return sorted(claims, key=lambda claimed: order[claimed.id])


def run_all(batch: Batch, tracer: Tracer, request: dict[str, Any], at_once: int) -> None:
    if at_once > 1:
        run_together(batch, tracer, request, at_once)
        return
    while (run := batch.start_next()) is not None:
        run_one(batch, run, tracer, request)
        batch.flush_if_due()


def run_together(batch: Batch, tracer: Tracer, request: dict[str, Any], at_once: int) -> None:
    """Each in a thread that waits for its coroutine, as the slot of a single job does."""
    running: set[Future[None]] = set()
    while (run := batch.start_next()) is not None:
        if len(running) == at_once:
            _, running = wait(running, return_when=FIRST_COMPLETED)
        running.add(coroutines.in_a_thread(run_one, batch, run, tracer, request))
    wait(running)


def run_one(batch: Batch, run: Run, tracer: Tracer, request: dict[str, Any]) -> None:
    own = request_of(run, request)
    run.deadline = execute.deadline_of(own)
    try:
        execute.run_claimed(run, tracer, own)
    except Exception:  # nothing of the body: its lease ends, and the others go on
        log.exception("batch_run_failed", job_id=str(run.claim.id))
    finally:
        batch.left(run)


def request_of(run: Run, request: dict[str, Any]) -> dict[str, Any]:
    """As the message of this job alone would have made it."""
    job_id = str(run.claim.id)
    hard_s, soft_s = request.get("timelimit") or (None, None)
    return {
        **{name: value for name, value in request.items() if name != "batch"},
        "id": job_id,
        "root_id": job_id,
        "correlation_id": job_id,
        "dispatch_no": run.claim.dispatch_no,
        "timelimit": (shorter(hard_s), shorter(soft_s)),
    }


def longer(limit_s: float | None) -> float | None:
    """Of a message: no job in it may have less than its own limit, and the last one starts this
    much later at most."""
    return None if limit_s is None else limit_s + BUDGET_S


def shorter(limit_s: float | None) -> float | None:
    return None if limit_s is None else limit_s - BUDGET_S


# --- from a pool's parent: the child is gone -------------------------------------------------


def lost(message_id: str, request: Any, exc: BaseException) -> list[UUID]:
    """Settle what had ended, give back what had not begun; the rest travels alone from now on.

    The jobs that have failed, by their hard time limit. Raises DatabaseError.
    """
    if BOARD.is_draining:
        return []
    jobs = jobs_of(vars(request))
    entry = JOURNAL.read(UUID(message_id))
    has_started = entry is not None and entry.at(Stage.STARTED)
    if isinstance(exc, TimeLimitExceeded) and not has_started:
        # Its child is killed only after this. One that has used its budget starts no further job;
        # of one that has not started its first the leases end.
        return []
    with settle.waiting_briefly():
        if entry is None:  # it died while it claimed them, or after the last was settled
            started, failed = end_started(jobs, exc)
        else:
            settle_ended(entry, jobs, request.task)
            give_back_unstarted(entry, jobs)
            started, failed = end_started([jobs[n] for n in entry.at(Stage.STARTED)], exc)
    JOURNAL.forget(UUID(message_id))
    log.error("batch_lost", message_id=message_id, started=list(map(str, started)), error=repr(exc))
    wake.after_commit()
    return failed


def settle_ended(entry: Entry, jobs: Sequence[Named], task: str) -> None:
    ended = [
        Success(*jobs[number], result)
        for number, result in entry.results.items()
        if entry.stages[number] == Stage.ENDED
    ]
    happened = batch_ledger.succeed(ended, by="dispatch_no") if ended else set()
    for job_id in happened:
        log.info("job_settled", job_id=str(job_id), task=task, outcome=Outcome.SUCCEEDED)


def give_back_unstarted(entry: Entry, jobs: Sequence[Named]) -> None:
    unstarted = [jobs[number] for number in entry.at(Stage.CLAIMED)]
    if unstarted:
        batch_ledger.give_back(unstarted, by="dispatch_no")


def end_started(started: Sequence[Named], exc: BaseException) -> tuple[set[UUID], list[UUID]]:
    """Those that were changed, and those of them that have failed."""
    if not isinstance(exc, TimeLimitExceeded):
        reason = str(exc) or type(exc).__name__
        return (batch_ledger.crash(started, reason=reason) if started else set()), []
    failed = [job_id for job_id, number in started if timed_out(job_id, number, exc)]
    return set(failed), failed


def timed_out(job_id: UUID, dispatch_no: int, exc: TimeLimitExceeded) -> bool:
    fence = ledger.fence_of_dispatch(job_id, dispatch_no)
    error = settle.report_of(exc, "")
    return fence is not None and ledger.fail(job_id, fence, failure=Failure.TIME_LIMIT, error=error)
