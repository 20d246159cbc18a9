"""What travels over the HTTP interface: the shape of requests and answers."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from tasks.enqueue import Enqueued, key_expires_at, needs_key, queue_of
from tasks.fleet import Life, Stop, WorkerStatus
from tasks.limits import BreakerState
from tasks.models import Job
from tasks.pauses import Paused
from tasks.payload import mask
from tasks.queues import LimitState, QueueLoad
from tasks.registry import task_of
from tasks.states import Pausable, State
from tasks.waiting import Waiting, WaitsFor


def moment(value: object) -> datetime | None:
    """ISO 8601 with a time zone, as UTC: what PostgreSQL returns is then a ``datetime`` again."""
    if value is None:
        return None
    try:
        parsed = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        parsed = None
    if parsed is None:
        raise ValueError("must be a time in ISO 8601, as 2030-01-31T09:00:00Z")
    if parsed.tzinfo is None:
        raise ValueError("needs a time zone, as in 2030-01-31T09:00:00Z")
    try:
        return parsed.astimezone(UTC)
    except OverflowError:
        raise ValueError("must lie in the years 1 to 9999") from None


def pausable(value: object) -> Pausable:
    if not isinstance(value, str) or value not in set(Pausable):
        raise ValueError("must be queue, task or tenant")
    return Pausable(value)


Moment = Annotated[datetime | None, BeforeValidator(moment)]


class Request(BaseModel):
    """Strict: text is no number, and a misspelt field is not ignored."""

    model_config = ConfigDict(extra="forbid", strict=True)


class NewJob(Request):
    task: str = Field(
        min_length=1, max_length=255, examples=["orders.tasks.capture"],
        description="The name of one of GET /api/tasks.",
    )  # fmt: skip
    payload: dict[str, Any] = Field(description="The parameters of the task, at most 256 KiB.")
    priority: int = Field(0, description="-100 to 100; higher goes first.")
    run_at: Moment = Field(None, description="ISO 8601 with a time zone; not before then.")
    start_by: Moment = Field(None, description="Expires when it has not started by then.")
    ordering_key: str | None = None


class TaskOut(BaseModel):
    """What this caller may enqueue."""

    name: str
    says: str = Field(description="The first line of its documentation.")
    queue: str
    needs_key: bool = Field(description="Whether the header Idempotency-Key must be sent.")
    key: str | None = Field(description="Without the header: filled from the payload.")
    dedupe_window_s: float | None = Field(
        description="Without a key, equal payloads within that time are one job."
    )
    sensitive: list[str] = Field(description="Parameters that are masked wherever people look.")
    payload: dict[str, Any] = Field(description="JSON Schema of the payload.")

    @classmethod
    def of(cls, task: Any, schema: dict[str, Any]) -> TaskOut:
        for name in task.sensitive:
            schema["properties"].get(name, {}).pop("default", None)
        return cls(
            name=task.name,
            says=(task.__doc__ or "").strip().partition("\n")[0],
            queue=queue_of(task),
            needs_key=needs_key(task),
            key=task.key,
            dedupe_window_s=task.dedupe_window,
            sensitive=list(task.sensitive),
            payload=schema,
        )


class Reason(Request):
    reason: str = Field(min_length=1, max_length=500, pattern=r"\S")


class Matching(Reason):
    """Which of your unfinished jobs; at least a task, a queue or an ordering key."""

    task: str | None = Field(None, min_length=1, max_length=255)
    queue: str | None = Field(None, min_length=1, max_length=100)
    ordering_key: str | None = Field(None, min_length=1, max_length=255)
    state: Literal["queued", "dispatched", "running"] | None = None
    created_before: Moment = Field(None, description="Accepted before then; by default, now.")

    @model_validator(mode="after")
    def names_something(self) -> Self:
        """A body without any of them was most likely meant otherwise."""
        if not (self.task or self.queue or self.ordering_key):
            raise ValueError("name a task, a queue or an ordering_key")
        return self


class CancelledJobs(BaseModel):
    cancelled: int = Field(description="Waited, and will never run.")
    asked: int = Field(description="Run, and have been asked to stop.")
    more: bool = Field(description="Some are left: send the same request again.")
    warning: str | None = Field(
        None, description="Nothing matched, and nobody knows this task or queue."
    )


class Accepted(BaseModel):
    id: UUID
    state: State
    created: bool = Field(description="False: this is a repeat, and nothing is new.")
    key_expires_at: datetime = Field(
        description="The key answers with this job until then, or longer."
    )
    derived: bool = Field(description="The key was made from the payload.")

    @classmethod
    def of(cls, answer: Enqueued, *, derived: bool) -> Accepted:
        return cls(
            id=answer.job_id,
            state=answer.state,
            created=answer.created,
            key_expires_at=answer.key_expires_at,
            derived=derived,
        )


class JobState(BaseModel):
    id: UUID
    state: State


class Error(BaseModel):
    type: str
    message: str


class JobSummary(BaseModel):
    id: UUID
    tenant: str
    task: str
    queue: str
    state: State
    attempts: int
    crashes: int
    priority: int
    failure: str | None = Field(description="Why it failed: error, exhausted, expired, ...")
    dead_letter: bool = Field(description="Failed, and waits for an operator.")
    run_at: datetime
    created_at: datetime
    started_at: datetime | None = Field(description="Of the first run, before a replay too.")
    finished_at: datetime | None

    @classmethod
    def of(cls, job: Job) -> JobSummary:
        return cls(**summary(job))


class JobDetail(JobSummary):
    waiting_for: WaitsFor | None
    waiting_detail: str | None = Field(description="The same in a sentence.")
    waiting_behind: UUID | None = Field(description="The job that must end first, if it is one.")
    estimate_s: float | None = Field(description="Seconds until it starts; null: not known.")
    hold_reason: str | None
    held_at: datetime | None
    start_by: datetime | None
    ordering_key: str | None
    cancel_requested_at: datetime | None
    idempotency_key: str | None
    key_expires_at: datetime | None = Field(
        description="Null: it gave its key to a younger job, or is a dead letter, which keeps it."
    )
    payload: dict[str, Any] | None = Field(description="With sensitive values masked.")
    progress: Any
    result: Any
    result_note: str | None = Field(description="What was changed to make the result JSON.")
    error: Error | None = Field(
        description="Of the latest run that did not succeed, since a replay."
    )

    @classmethod
    def of(cls, job: Job, waiting: Waiting | None = None) -> JobDetail:
        key_ends = job.idempotency_key is not None and not job.dead_letter
        return cls(
            **summary(job),
            waiting_for=waiting.waits_for if waiting else None,
            waiting_detail=waiting.detail if waiting else None,
            waiting_behind=waiting.behind if waiting else None,
            estimate_s=waiting.estimate_s if waiting else None,
            hold_reason=job.hold_reason or None,
            held_at=job.held_at if job.hold_reason else None,
            start_by=job.start_by,
            ordering_key=job.ordering_key,
            cancel_requested_at=job.cancel_requested_at,
            idempotency_key=job.idempotency_key,
            key_expires_at=key_expires_at(job.queue, job.finished_at) if key_ends else None,
            payload=shown_payload(job),
            progress=job.progress,
            result=job.result,
            result_note=job.result_note or None,
            error=Error(type=job.error_type, message=job.error_message) if job.error_type else None,
        )


class JobPage(BaseModel):
    jobs: list[JobSummary]
    next_cursor: str | None = Field(description="Null at the end. A page may be short before it.")


class OutputOut(BaseModel):
    seq: int
    data: Any
    at: datetime


class OutputPage(BaseModel):
    outputs: list[OutputOut]
    next: int | None = Field(description="The `after` of the next page; null at the end for now.")
    state: State = Field(description="Read before the outputs: terminal and no next is the end.")


class WorkerOut(BaseModel):
    name: str
    queues: list[str]
    capacity: int = Field(description="Jobs that it runs at once.")
    busy: int = Field(description="Jobs that it held at its last beat.")
    release: str
    pid: int
    host: str
    last_beat_age_s: float
    state: Life

    @classmethod
    def of(cls, status: WorkerStatus) -> WorkerOut:
        return cls(**worker_fields(status))


class RunningOut(BaseModel):
    id: UUID
    tenant: str
    task: str
    queue: str
    since: datetime


class WorkerDetail(WorkerOut):
    safe_to_stop: bool = Field(
        description="No job runs there. A worker that does not drain may take one right away."
    )
    running: list[RunningOut] = Field(description="The jobs that you may see, oldest first.")
    running_of_others: int = Field(description="How many more run there, of other tenants.")

    @classmethod
    def seen_by(cls, tenant: str | None, stop: Stop) -> WorkerDetail:
        """``tenant``: whose jobs are named; None names all."""
        seen = [job for job in stop.running if tenant in (None, job.tenant)]
        return cls(
            **worker_fields(stop.worker),
            safe_to_stop=stop.is_safe,
            running=[
                RunningOut(
                    id=job.id, tenant=job.tenant, task=job.task, queue=job.queue, since=job.since
                )
                for job in seen
            ],
            running_of_others=len(stop.running) - len(seen),
        )


def worker_fields(status: WorkerStatus) -> dict[str, Any]:
    return {**vars(status), "last_beat_age_s": round(status.last_beat_age_s, 3)}


class QueueOut(BaseModel):
    name: str
    depth: int = Field(description="Jobs that could go now; counting stops at 10,000.")
    scheduled: int = Field(description="Jobs whose time has not come; stops at 10,000.")
    held: int = Field(description="Jobs that no live worker can run; stops at 10,000 a reason.")
    ordered: int = Field(description="Jobs behind an older one of their ordering key.")
    held_by_pause: int = Field(description="Jobs of a paused task that were put on hold.")
    oldest_age_s: float
    in_flight: int = Field(description="On the broker or running.")
    capacity: int = Field(description="Jobs that the live workers run at once.")
    workers: int
    paused: bool
    pause_reason: str | None
    breaker: BreakerState | None = Field(description="Of its downstream; null without one.")

    @classmethod
    def of(cls, load: QueueLoad, paused: Paused | None, breaker: BreakerState | None) -> QueueOut:
        return cls(
            name=load.name,
            depth=load.due,
            scheduled=load.scheduled,
            held=load.held,
            ordered=load.ordered,
            held_by_pause=load.paused,
            oldest_age_s=round(load.oldest_due_s, 3),
            in_flight=load.in_flight,
            capacity=load.capacity,
            workers=load.workers,
            paused=paused is not None,
            pause_reason=paused.reason if paused else None,
            breaker=breaker,
        )


class LimitOut(BaseModel):
    """``kind`` and ``name``: a downstream, or a task with a rate of its own."""

    kind: Literal["downstream", "task"]
    name: str
    queues: list[str]
    max_concurrency: int | None
    in_flight: int | None = Field(description="On the broker or running.")
    rate: str | None
    tokens: float | None = Field(description="Calls that its rate allows right now.")
    paused_s: float = Field(description="Still to wait because a job asked for a pause.")
    pause_reason: str | None = Field(description="Null as well for a client of one tenant.")
    breaker: BreakerState | None
    breaker_reason: str | None
    open_s: float = Field(description="Until one job may try again.")
    openings: int = Field(description="In a row, without a success between.")

    @classmethod
    def of(cls, state: LimitState, *, tells_reason: bool) -> LimitOut:
        status = state.status
        return cls(
            kind=state.kind,
            name=state.name,
            queues=state.queues,
            max_concurrency=state.max_concurrency,
            in_flight=state.in_flight,
            rate=state.rate,
            tokens=None if state.tokens is None else round(state.tokens, 3),
            paused_s=round(status.paused_s, 3),
            pause_reason=status.pause_reason if tells_reason and status.paused_s else None,
            breaker=status.breaker if state.has_breaker else None,
            breaker_reason=status.open_reason or None,
            open_s=round(status.open_s, 3),
            openings=status.openings,
        )


class NewPause(Request):
    kind: Annotated[Pausable, BeforeValidator(pausable)]
    name: str = Field(max_length=255, pattern=r"^[^\x00]*$")
    reason: str = Field("", max_length=500)
    until: Moment = Field(None, description="It ends by itself then; null: when it is resumed.")
    closed: bool = Field(False, description="Of a queue: refuse new jobs as well (503).")


class PauseOut(BaseModel):
    kind: Pausable
    name: str
    reason: str
    actor: str
    closed: bool
    paused_at: datetime
    until: datetime | None
    warning: str | None = Field(None, description="Nobody knows this name; of a new pause only.")

    @classmethod
    def of(cls, paused: Paused, warning: str | None = None) -> PauseOut:
        shown = {name: getattr(paused, name) for name in cls.model_fields if name != "warning"}
        return cls(**shown, warning=warning)


class ProblemOut(BaseModel):
    """RFC 9457, as ``application/problem+json``."""

    type: str = Field(examples=["/problems/key-conflict"])
    title: str
    status: int
    detail: str
    path: str | None = Field(None, description="The place in the body, as $.payload.amount.")
    fields: list[str] | None = None


# --- from a row --------------------------------------------------------------------------

# What a list shows; payloads, results and tracebacks stay in the table.
SUMMARY_FIELDS = tuple(JobSummary.model_fields)
DETAIL_FIELDS = (
    *SUMMARY_FIELDS, "seq", "lane", "due", "hold_reason", "held_at", "start_by",
    "ordering_key", "cancel_requested_at", "idempotency_key", "payload", "progress", "result",
    "result_note", "error_type", "error_message",
)  # fmt: skip


def summary(job: Job) -> dict[str, Any]:
    shown = {name: getattr(job, name) for name in SUMMARY_FIELDS}
    return {**shown, "failure": job.failure or None}


def shown_payload(job: Job) -> dict[str, Any] | None:
    """A task that is not known here cannot say what is sensitive, so nothing is shown."""
    task = task_of(job.task)
    if task is None:
        return None
    sensitive: Iterable[str] = getattr(task, "sensitive", ())
    return mask(job.payload, sensitive)
