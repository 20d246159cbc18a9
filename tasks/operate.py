"""What operators do to jobs: one answer per job, with the reason where nothing happened."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from tasks import ledger, wake
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
        state = act(action, job_id, actor=actor, reason=reason)
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
