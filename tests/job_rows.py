"""Rows of jobs in any state, as they look after a life that the test does not have to live."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from tasks.enqueue import uuid7
from tasks.models import Job
from tasks.states import TERMINAL, Failure, State


def job_row(state: State = State.QUEUED, *, age_s: float = 0.0, **fields: Any) -> Job:
    """A job accepted ``age_s`` ago, complete for its state. ``fields`` win."""
    accepted = datetime.now(UTC) - timedelta(seconds=age_s)
    job_id = fields.pop("id", None) or id_of(age_s)
    known: dict[str, Any] = {
        "id": job_id,
        "task": "t.trace",
        "queue": "default",
        "tenant": "",
        "idempotency_key": str(job_id),
        "fingerprint": "f" * 64,
        "payload": {"note": "n"},
        "state": state,
        "created_at": accepted,
        "run_at": accepted,
    }
    if age_s:  # accepted before all that have a number of the sequence
        known["seq"] = -int(age_s * 1000)
    return Job.objects.create(**known | life_of(state, accepted) | fields)


def life_of(state: State, accepted: datetime) -> dict[str, Any]:
    """The fields that the constraints of the table want for this state."""
    started = accepted + timedelta(seconds=0.4)
    if state == State.QUEUED:
        return {}
    if state == State.DISPATCHED:
        return {"dispatched_at": accepted, "dispatch_no": 1}
    ran = {"started_at": started, "claimed_at": started, "fence": 1, "dispatch_no": 1}
    if state == State.RUNNING:
        return ran | {"lease_expires_at": datetime.now(UTC) + timedelta(seconds=15)}
    ended = ran | {"finished_at": started + timedelta(seconds=1.2), "attempts": 1}
    assert state in TERMINAL
    return ended | (
        {"failure": Failure.ERROR, "dead_letter": True} if state == State.FAILED else {}
    )


def id_of(age_s: float) -> UUID:
    """An id as it would have been made then."""
    milliseconds = int((time.time() - age_s) * 1000)
    return UUID(int=uuid7().int & (2**80 - 1) | milliseconds << 80)
