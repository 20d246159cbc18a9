"""Every error that callers and task bodies meet, as one tree.

TasksError
├── Rejected            not accepted now; try again after ``retry_after`` seconds
│   ├── QueueClosed     an operator closed the queue for maintenance
│   └── PoolFull        by an in-process pool whose line is full
├── PoolClosed          an in-process pool takes nothing more
├── DeadlinePassed      it could not have started before its deadline
├── Discarded           a pool stopped and left this work undone
├── KeyConflict         the idempotency key names another request
├── InvalidKey          the idempotency key cannot be stored
├── InvalidPayload      the payload cannot be stored, or does not fit the task
├── UnknownTask         no such task here
├── NotReplayable       the job is not a failed one, or its key has a new owner
├── RetryAfter          body: the downstream said when to come back
├── Snooze              body: not now; costs nothing
├── Fail                body: no retry can help
└── Interrupted         the run must stop; raised by ``current_run().check()``
    ├── Cancelled       somebody asked for it
    ├── LeaseLost       another worker may own the job by now
    └── Draining        this worker is about to stop
"""

from __future__ import annotations

from collections.abc import Sequence


class TasksError(Exception):
    """The root of the tree."""


class Rejected(TasksError):
    """The job was not accepted. Inside a task body it is a snooze."""

    def __init__(self, reason: str, retry_after: int = 1, *, queue: str = "") -> None:
        """``reason``: where admission refused, a ``tasks.states.Refusal``.

        ``retry_after``: whole seconds, at least 1. ``queue``: "" where it is not one queue's.
        """
        where = f"queue {queue!r}: " if queue else ""
        super().__init__(f"{where}{reason}; try again in {retry_after} s")
        self.reason = reason
        self.retry_after = retry_after
        self.queue = queue


class QueueClosed(Rejected):
    """Nothing is accepted for this queue until an operator opens it again."""


class PoolFull(Rejected):
    """The pool has no room, or gave the place to more important work."""


class PoolClosed(TasksError):
    """The pool stops or has stopped; the message says why."""


class DeadlinePassed(TasksError):
    """The work was refused, or left the line, because its deadline had passed."""


class Discarded(TasksError):
    """The pool stopped before the work began, or while it could not be interrupted."""


class KeyConflict(TasksError):
    """The key belongs to another request. Names the fields that differ, never their values."""

    def __init__(self, key: str, fields: Sequence[str]) -> None:
        super().__init__(
            f"idempotency key {key!r} was used for another request;"
            f" it differs in: {', '.join(fields)}"
        )
        self.key = key
        self.fields = tuple(fields)


class InvalidKey(TasksError):
    """A key is 1-255 visible ASCII characters."""


class InvalidPayload(TasksError):
    """The payload is refused.

    ``path`` names the place (``"$.items[2].price"``), never the value.
    ``malformed`` is True for what no task could take (NaN, NUL, too large), False for
    what does not fit the signature of this one.
    """

    def __init__(
        self, message: str, *, path: str = "$", malformed: bool = False, too_large: bool = False
    ) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path
        self.message = message
        self.malformed = malformed
        self.too_large = too_large


class UnknownTask(TasksError):
    """No task of that name is registered, or it is not a LedgerTask."""

    def __init__(self, name: str, hint: str = "") -> None:
        super().__init__(f"unknown task {name!r}{'; ' + hint if hint else ''}")
        self.name = name


class NotReplayable(TasksError):
    """Only a failed job can be replayed."""


class RetryAfter(TasksError):
    """Raised by a body: try again after ``seconds``. Spends one retry.

    With ``pause_downstream`` nothing of the downstream goes until then: it has refused us, not
    only this job.
    """

    def __init__(self, seconds: float, reason: str = "", *, pause_downstream: bool = False) -> None:
        super().__init__(reason or f"retry after {seconds} s")
        self.seconds = seconds
        self.reason = reason
        self.pause_downstream = pause_downstream


class Snooze(TasksError):
    """Raised by a body: give the job back for ``seconds``. Spends nothing."""

    def __init__(self, seconds: float, reason: str = "") -> None:
        super().__init__(reason or f"snoozed for {seconds} s")
        self.seconds = seconds


class Fail(TasksError):
    """Raised by a body: fail now, whatever retries are left.

    With ``dead_letter`` (the default) the job waits for an operator.
    """

    def __init__(self, reason: str, dead_letter: bool = True) -> None:
        super().__init__(reason)
        self.dead_letter = dead_letter


class Interrupted(TasksError):
    """The run must stop now; what it has checkpointed is kept."""


class Cancelled(Interrupted):
    """A caller or an operator asked for this run to stop."""


class LeaseLost(Interrupted):
    """The lease could not be renewed: whatever this run writes from now on is refused."""


class Draining(Interrupted):
    """The worker stops; the job is given back and costs nothing."""
