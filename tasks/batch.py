"""What a worker does with a message that names several jobs: claim all, run each, settle together.

Each job is run as if it had come alone: with a lease, a fence, a request, signals and an outcome of
its own. Plain bodies run one after the other, coroutines at once within the slots of the worker.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import structlog
from celery.app.trace import trace_ok_t
from celery.exceptions import TimeLimitExceeded
from django.db import DatabaseError

from tasks import adopt, batch_ledger, connections, coroutines, execute, ledger, settle, wake
from tasks.batch_ledger import Named, Success
from tasks.board import BOARD
from tasks.coroutines import Gate, Slot
from tasks.execute import DATABASE_PATIENCE_S, Tracer
from tasks.flush import BUDGET_S, KEEPER, Batch
from tasks.journal import HELD, JOBS_MAX, JOURNAL, Entry, Stage
from tasks.run import Run
from tasks.states import Failure, Outcome
from tasks.wiring import release, topology

log = structlog.get_logger(__name__)


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
    work = Work(task, tracer, message_id, request)
    jobs, queue = jobs_of(request), topology().queue(adopt.queue_of(task, request))
    gate = coroutines.gate_of(task)
    with JOURNAL.place(UUID(message_id), len(jobs)) as place:
        batch = Batch(jobs, place, queue)
        try:
            with KEEPER.keeping(batch):
                if gate is None:
                    ran = run_in_turn(batch, work, jobs)
                else:
                    ran = run_at_once(batch, work, jobs, gate)
        finally:
            batch.close()
    if not ran:
        return execute.ignored("none of its jobs is to be run by this message")
    return trace_ok_t(None, None, time.monotonic() - began_at, f"{ran} jobs")


@dataclass(frozen=True)
class Work:
    """What all jobs of a message have in common."""

    task: Any
    tracer: Tracer
    message_id: str
    request: dict[str, Any]

    @property
    def lease_s(self) -> float:
        return float(topology().queue(adopt.queue_of(self.task, self.request)).lease)


def run_in_turn(batch: Batch, work: Work, jobs: Sequence[Named]) -> int:
    """How many were claimed."""
    claimed = claim(batch, work, jobs)
    while (run := batch.start_next()) is not None:
        run_one(batch, run, work)
        batch.flush_if_due()
    return claimed


def run_at_once(batch: Batch, work: Work, jobs: Sequence[Named], gate: Gate) -> int:
    """In rounds: as many as have a slot are claimed and start, each in a thread that waits for
    its coroutine. What has none within a lease goes back, and with it the place in the line."""
    ends_at = time.monotonic() + work.lease_s
    running: list[Future[None]] = []
    claimed = 0
    with gate.line() as waiter:
        while jobs and (slots := waiter.take(len(jobs), ends_at - time.monotonic())):
            try:
                claimed += claim(batch, work, jobs[: len(slots)])
            finally:
                running += start(batch, work, slots)
            jobs = jobs[len(slots) :]
    execute.give_back_unclaimed(work.task, jobs)
    wait(running)
    return claimed


def start(batch: Batch, work: Work, slots: Sequence[Slot]) -> list[Future[None]]:
    """What has just been claimed. A slot that nobody needs is free again."""
    started = []
    for slot in slots:
        run = batch.start_next()
        if run is None:
            slot.free()
        else:
            run.slot = slot
            started.append(coroutines.in_a_thread(run_one, batch, run, work))
    return started


def claim(batch: Batch, work: Work, jobs: Sequence[Named]) -> int:
    """Take those that are still to be run; how many."""
    claimed_at = time.monotonic()
    claims: list[ledger.Claim] = []
    try:
        claims = connections.persisting(
            batch_ledger.claim,
            jobs,
            deadline_s=DATABASE_PATIENCE_S,
            worker=str(work.request.get("hostname") or ""),
            release=release(),
            lease_s=work.lease_s,
        )
    except DatabaseError as exc:  # the relay sends them again
        log.error("claim_failed", message_id=work.message_id, jobs=len(jobs), error=str(exc))
    if len(claims) < len(jobs):
        found = {"jobs": len(jobs), "claimed": len(claims)}
        log.info("message_is_stale", message_id=work.message_id, **found)
    order = {job_id: number for number, (job_id, _) in enumerate(jobs)}
    claims = sorted(claims, key=lambda claimed: order[claimed.id])
    batch.add(jobs, [Run(claimed, work.task) for claimed in claims], claimed_at=claimed_at)
    return len(claims)


def run_one(batch: Batch, run: Run, work: Work) -> None:
    own = request_of(run, work.request)
    run.deadline = execute.deadline_of(own)
    try:
        execute.run_claimed(run, work.tracer, own)
    except Exception:  # nothing of the body: its lease ends, and the others go on
        log.exception("batch_run_failed", job_id=str(run.claim.id))
    finally:
        if run.slot is not None:
            run.slot.leave()
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

    The jobs that have failed, by their hard time limit. Each change commits by itself, and a row
    that somebody keeps locked is left to the end of its lease. Raises DatabaseError.
    """
    if BOARD.is_draining:
        return []
    entries = JOURNAL.read(UUID(message_id))
    pid = getattr(request, "worker_pid", None)
    mine = [entry for entry in entries if entry.pid == pid]
    if not mine:  # it had not begun, or all was settled
        return []
    try:
        return settle_lost(mine[0], [entry for entry in entries if entry.pid != pid], request, exc)
    finally:
        JOURNAL.forget(UUID(message_id), mine[0].pid)


def settle_lost(
    entry: Entry, others: Sequence[Entry], request: Any, exc: BaseException
) -> list[UUID]:
    """``others``: of processes that have the same message, and other jobs of it."""
    jobs = jobs_of(vars(request))
    settle_ended(entry, jobs, request.task)
    is_late = isinstance(exc, TimeLimitExceeded)
    # Killed only after this, it starts no further job: its time is up. But the first it may start
    # however late it is, and then the leases end.
    if not is_late or entry.at(Stage.STARTED, Stage.ENDED):
        give_back_unstarted(entry, others, jobs)
    began = [jobs[number] for number in entry.at(Stage.STARTED)]
    if is_late:
        started = failed = [job_id for job_id, number in began if timed_out(job_id, number, exc)]
    else:
        started, failed = crash(began, exc), []
    log.error(
        "batch_lost",
        message_id=str(request.id),
        started=list(map(str, started)),
        error=repr(exc),
    )
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


def give_back_unstarted(entry: Entry, others: Sequence[Entry], jobs: Sequence[Named]) -> None:
    """Also what it may have claimed, without having heard of it, and no other process has."""
    theirs = {number for other in others for number in other.at(*HELD, Stage.NAMED)}
    unheard = [number for number in entry.at(Stage.NAMED) if number not in theirs]
    unstarted = [jobs[number] for number in (*entry.at(Stage.CLAIMED), *unheard)]
    if unstarted:
        batch_ledger.give_back(unstarted, by="dispatch_no")


def crash(began: Sequence[Named], exc: BaseException) -> list[UUID]:
    reason = str(exc) or type(exc).__name__
    return list(batch_ledger.crash(began, reason=reason)) if began else []


def timed_out(job_id: UUID, dispatch_no: int, exc: BaseException) -> bool:
    error = settle.report_of(exc, "")
    with settle.waiting_briefly():
        fence = ledger.fence_of_dispatch(job_id, dispatch_no)
        if fence is None:
            return False
        return ledger.fail(job_id, fence, failure=Failure.TIME_LIMIT, error=error)
