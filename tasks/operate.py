"""What operators do to jobs: one answer per job, with the reason where nothing happened."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from tasks import ledger, wake
from tasks.errors import Rejected
from tasks.ledger import CancelledMany, Selection
from tasks.models import Job
from tasks.states import Action, State


@dataclass
class Answers:
    """Which jobs took part. A running job that was cancelled has only been asked to stop."""

    done: list[UUID] = field(default_factory=list)
    asked: list[UUID] = field(default_factory=list)
    refused: dict[str, list[UUID]] = field(default_factory=lambda: defaultdict(list))


def operate(action: Action, job_ids: Iterable[UUID], *, actor: str, reason: str) -> Answers:
    """Cancel, replay or dismiss each job, in the order of their ids."""
    answers = Answers()
    for job_id in sorted(set(job_ids)):
        try:
            state = act(action, job_id, actor=actor, reason=reason)
        except Rejected as exc:
            answers.refused[exc.reason].append(job_id)
            continue
        if state is None:
            answers.refused[why_not(action, job_id)].append(job_id)
        elif state == State.RUNNING:
            answers.asked.append(job_id)
        else:
            answers.done.append(job_id)
    return answers


def act(action: Action, job_id: UUID, *, actor: str, reason: str) -> str | None:
    """The state afterwards; None when nothing happened."""
    match action:
        case Action.CANCEL:
            return ledger.cancel(job_id, actor=actor, reason=reason)
        case Action.REPLAY:
            return State.QUEUED if replay(job_id, actor=actor, reason=reason) else None
        case Action.DISMISS:
            return State.FAILED if ledger.dismiss(job_id, actor=actor, reason=reason) else None


# Each batch commits by itself, so that no row stays locked for long.
BATCH = 1_000


def cancel_matching(
    selection: Selection, *, actor: str, reason: str, batches: int
) -> tuple[CancelledMany, bool]:
    """Cancel the unfinished jobs of a selection, at most ``batches`` times a thousand.

    The second value says whether some are left: too many, or locked at this moment.
    """
    done = CancelledMany()
    for _ in range(batches):
        batch = ledger.cancel_some(selection, BATCH, actor=actor, reason=reason)
        done += batch
        if batch.total < BATCH:
            break
    return done, ledger.is_any_left(selection)


def replay(job_id: UUID, *, actor: str, reason: str) -> bool:
    replayed = ledger.replay(job_id, actor=actor, reason=reason)
    if replayed:
        wake.after_commit(job_id)
    return replayed


def why_not(action: Action, job_id: UUID) -> str:
    """Read afterwards: the state that was in the way, or what it has become since."""
    state = state_of(job_id)
    if state is None:
        return "there is no such job"
    if action is Action.REPLAY and state == State.FAILED:
        return "a younger job owns the key by now"
    if action is Action.DISMISS and state == State.FAILED:
        return "not a dead letter"
    return f"already {state}" if action is Action.CANCEL else f"{state}, not failed"


def state_of(job_id: UUID) -> str | None:
    return Job.objects.filter(pk=job_id).values_list("state", flat=True).first()
