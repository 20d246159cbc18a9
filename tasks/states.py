"""The state machine of a job, as data. Nothing but the ledger writes a state."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    QUEUED = "queued"
    DISPATCHED = "dispatched"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})
UNFINISHED = frozenset(State) - TERMINAL

# What may follow what. A dispatched job is dispatched again when its message was lost;
# a failed one is queued again by an operator's replay. Succeeded and cancelled are for ever.
TRANSITIONS: dict[State, frozenset[State]] = {
    State.QUEUED: frozenset({State.DISPATCHED, State.CANCELLED, State.FAILED}),
    State.DISPATCHED: frozenset(
        {State.DISPATCHED, State.RUNNING, State.QUEUED, State.CANCELLED, State.FAILED}
    ),
    State.RUNNING: frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED, State.QUEUED}),
    State.SUCCEEDED: frozenset(),
    State.FAILED: frozenset({State.QUEUED}),
    State.CANCELLED: frozenset(),
}


class Failure(StrEnum):
    """Why a job failed, for people and filters."""

    ERROR = "error"  # the body raised what is not retried
    EXHAUSTED = "exhausted"  # max_retries spent
    TIME_LIMIT = "time_limit"  # killed by the hard time limit, no retries left
    EXPIRED = "expired"  # start_by passed before the first start
    POISON = "poison"  # its process died max_crashes times
    AMBIGUOUS = "ambiguous"  # irreversible work whose process died
    GAVE_UP = "gave_up"  # given back or on hold for longer than give_up_after


class Hold(StrEnum):
    """Why a queued job must not run now; the beginning of ``hold_reason``."""

    TASK_UNKNOWN = "task unknown"  # to the worker that got it
    INCOMPATIBLE = "incompatible"  # its payload does not fit the task of the worker's release
    ORDER = "order"  # an older job of its ordering key has not ended
    PAUSED = "paused"  # an operator paused its task


class Pausable(StrEnum):
    """What an operator may keep from running."""

    QUEUE = "queue"
    TASK = "task"
    TENANT = "tenant"


class Refusal(StrEnum):
    """Why a job was not accepted; what ``Rejected.reason`` says."""

    QUEUE_FULL = "queue full"
    TENANT_FULL = "tenant full"  # its share of the queue
    LONG_WAIT = "expected wait too long"
    CLOSED = "queue closed"  # by an operator
    CONTENDED = "key contended"  # an open transaction holds the idempotency key
    SHED = "shed"  # accepted, then displaced by a more important job of its tenant


class Outcome(StrEnum):
    """How an attempt ended."""

    SUCCEEDED = "succeeded"
    RETRY = "retry"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Action(StrEnum):
    """What a person did to a job; recorded with who and why."""

    CANCEL = "cancel"
    REPLAY = "replay"
    DISMISS = "dismiss"
