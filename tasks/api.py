"""The HTTP interface to jobs. Each view parses, calls one function and renders."""

from __future__ import annotations

import base64
import struct
from typing import Annotated, Any
from uuid import UUID

import structlog
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from ninja import Body, Header, NinjaAPI, Query, Status
from ninja.parser import Parser

from tasks import fleet, ledger, limits, operate, pauses, sql
from tasks.clients import AUTHENTICATION, Caller, Scope, caller_with
from tasks.enqueue import Enqueued, Item, accept, needs_key
from tasks.errors import InvalidKey, InvalidPayload
from tasks.keys import check_key
from tasks.ledger import Selection
from tasks.long_poll import (
    NO_SEAT_RETRY_AFTER_S,
    wait_until,
    wait_until_finished,
    wished_wait_s,
)
from tasks.models import Job
from tasks.outputs import read_outputs
from tasks.paging import Place, Window, read_page
from tasks.pauses import Paused
from tasks.problems import (
    FORBIDDEN,
    INVALID,
    INVALID_KEY,
    MALFORMED,
    UNKNOWN_TASK,
    WRONG_MEDIA_TYPE,
    WRONG_STATE,
    Problem,
    answer_with_problems,
    not_found,
)
from tasks.queues import breakers, limit_states, queue_loads
from tasks.registry import ledger_tasks, suggestion, task_of
from tasks.representations import (
    DETAIL_FIELDS,
    SUMMARY_FIELDS,
    Accepted,
    CancelledJobs,
    JobDetail,
    JobPage,
    JobState,
    JobSummary,
    LimitOut,
    Matching,
    NewJob,
    NewPause,
    OutputOut,
    OutputPage,
    PauseOut,
    ProblemOut,
    QueueOut,
    Reason,
    TaskOut,
    WorkerDetail,
    WorkerOut,
)
from tasks.signature import signature_of
from tasks.spelling import doubt
from tasks.states import Action, Pausable, State
from tasks.strict_json import parse
from tasks.waiting import waiting_for

log = structlog.get_logger(__name__)

PAGE_SIZE = 50
PAGE_MAX = 200
# Rows that one page looks at, so that a filter with no match does not read a whole history.
LOOKED_AT_MAX = 10_000
# Of a thousand jobs, cancelled in one request: about a second.
BATCHES = 10
OUTPUTS = 100
OUTPUTS_MAX = 500
BIGINT = {"ge": -(2**63), "le": 2**63 - 1}


class StrictParser(Parser):
    """JSON that can be stored unchanged, or an error that names the place."""

    def parse_body(self, request: HttpRequest) -> dict[str, Any]:
        if request.content_type != "application/json":
            raise Problem(WRONG_MEDIA_TYPE, "Send Content-Type: application/json.")
        body = parse(request.body)
        if not isinstance(body, dict):
            raise InvalidPayload("the body must be an object", malformed=True)
        return body


def refusals(*statuses: int) -> dict[Any, Any]:
    return dict.fromkeys((401, 403, 503, *statuses), ProblemOut)


api = NinjaAPI(
    title="Jobs",
    urls_namespace="tasks",
    auth=AUTHENTICATION,
    parser=StrictParser(),
    description="Accepts jobs once and says what became of them.",
)
answer_with_problems(api)


# --- enqueue -----------------------------------------------------------------------------


@api.post(
    "/jobs",
    response={202: Accepted, 200: Accepted, **refusals(400, 413, 415, 422, 429)},
    summary="Enqueue a job",
)
def enqueue_job(
    request: HttpRequest,
    response: HttpResponse,
    job: NewJob,
    idempotency_key: Annotated[
        str | None,
        Header(
            alias="Idempotency-Key",
            description="Your name for this intent. Required, unless the task makes its own.",
        ),
    ] = None,
    prefer: Annotated[
        str | None, Header(description="wait=N: where there is no room, wait N s for some.")
    ] = None,
) -> Status[Accepted]:
    """The same key and payload again is the same job: 200 in place of 202."""
    caller = caller_with(request, Scope.ENQUEUE)
    wait_s = wished_wait_s(prefer)
    answer = accept_for(caller, job, idempotency_key, wait_s=wait_s)
    if wait_s:
        response["Preference-Applied"] = f"wait={wait_s}"
    response["Location"] = f"{request.path}/{answer.job_id}"
    if not answer.created:
        response["Idempotent-Replayed"] = "true"
    accepted = Accepted.of(answer, derived=idempotency_key is None)
    return Status(202 if answer.created else 200, accepted)


def accept_for(caller: Caller, job: NewJob, key: str | None, *, wait_s: float = 0.0) -> Enqueued:
    """The tenant is the caller's, whatever the body says."""
    task = task_for(caller, job.task)
    if key is not None:
        check_key(key)
    elif needs_key(task):
        raise Problem(INVALID_KEY, "This task needs an Idempotency-Key header.")
    item = Item(
        job.payload,
        key=key,
        tenant=caller.tenant,
        priority=job.priority,
        run_at=job.run_at,
        start_by=job.start_by,
        ordering_key=job.ordering_key,
    )
    try:
        return accept(task, item, wait_s=wait_s)
    except InvalidPayload as error:
        raise in_the_body(error) from error
    except InvalidKey as error:  # the caller's has passed above
        raise Problem(INVALID_KEY, str(error), path="$.ordering_key") from error


def task_for(caller: Caller, name: str) -> Any:
    """Tasks that are not published do not exist for API clients."""
    task: Any = task_of(name)
    if getattr(task, "is_ledger_task", False) and (task.api or caller.every_task):
        return task
    near = suggestion(name, [offered.name for offered in tasks_for(caller)])
    raise Problem(UNKNOWN_TASK, f"No task of this name can be enqueued here{near}", path="$.task")


def tasks_for(caller: Caller) -> list[Any]:
    """Those that the caller may enqueue, by name."""
    return [task for task in ledger_tasks().values() if task.api or caller.every_task]


def in_the_body(error: InvalidPayload) -> InvalidPayload:
    """The path as the client sees it: ``$`` of the payload is ``$.payload`` of the body."""
    inside = "payload" + error.path[1:] if error.path.startswith("$") else error.path
    return InvalidPayload(
        error.message, path=f"$.{inside}", malformed=error.malformed, too_large=error.too_large
    )


@api.get("/tasks", response={200: list[TaskOut], **refusals()}, summary="List the tasks")
def list_tasks(request: HttpRequest) -> list[TaskOut]:
    """Those that you may enqueue, by name, each with the JSON Schema of its payload."""
    caller = caller_with(request, Scope.ENQUEUE)
    described = ((task, schema_of(task)) for task in tasks_for(caller))
    return [TaskOut.of(task, schema) for task, schema in described if schema is not None]


def schema_of(task: Any) -> dict[str, Any] | None:
    """None: its parameters cannot be told by name, so nobody can enqueue it."""
    try:
        return signature_of(task).schema()
    except InvalidPayload:
        return None


# --- cancel many -------------------------------------------------------------------------


# Before the address of one job, which would match it too.
@api.post(
    "/jobs/cancel",
    response={202: CancelledJobs, **refusals(400, 415, 422)},
    summary="Cancel the jobs that match",
)
def cancel_jobs(request: HttpRequest, which: Matching) -> Status[CancelledJobs]:
    """What waits is cancelled at once; what runs is asked to stop. At most 10,000 in one request:
    send it again, with the same `created_before`, until `more` is false."""
    caller = caller_with(request, Scope.ENQUEUE, Scope.OPERATE)
    given = which.model_dump(exclude={"reason"})
    selection = Selection(
        **{**given, "created_before": which.created_before or sql.now()},
        tenant=None if caller.every_tenant else caller.tenant,
    )
    done, more = operate.cancel_matching(
        selection, actor=caller.name, reason=which.reason, batches=BATCHES
    )
    warning = None if done.total else doubt_of(which, caller)
    return Status(202, CancelledJobs(
        cancelled=done.cancelled, asked=done.asked, more=more, warning=warning
    ))  # fmt: skip


def doubt_of(which: Matching, caller: Caller) -> str | None:
    """What is odd about the names, once nothing has them: jobs of an old release may have a name
    that is known no more. Only an operator is told which one was meant: others may not see all."""
    given = ((Pausable.TASK, which.task), (Pausable.QUEUE, which.queue))
    odd = [said for kind, name in given if name and (said := doubt(kind, name))]
    if not odd or Scope.OPERATE in caller.scopes:
        return " ".join(odd) or None
    return "Nothing was cancelled, and no such task or queue is known here."


# --- read --------------------------------------------------------------------------------


@api.get("/jobs", response={200: JobPage, **refusals(400, 422)}, summary="List jobs")
def list_jobs(
    request: HttpRequest,
    state: State | None = None,
    task: Annotated[str | None, Query(max_length=255, pattern=r"^[^\x00]*$")] = None,
    cursor: str | None = None,
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = PAGE_SIZE,
) -> JobPage:
    """Newest first. Go on with `next_cursor` until it is null."""
    jobs = jobs_of(caller_with(request, Scope.READ))
    found = jobs.filter(**wanted(state=state, task=task)).only("seq", *SUMMARY_FIELDS)
    page = read_page(found, Place(place_of(cursor)), size=limit, window=Window(jobs, LOOKED_AT_MAX))
    return JobPage(jobs=list(map(JobSummary.of, page.rows)), next_cursor=cursor_of(page.older))


@api.get("/jobs/{job_id}", response={200: JobDetail, **refusals(404)}, summary="Read a job")
def read_job(
    request: HttpRequest,
    response: HttpResponse,
    job_id: str,
    prefer: Annotated[
        str | None, Header(description="wait=N: answer when it has finished, or after N s.")
    ] = None,
) -> JobDetail:
    caller = caller_with(request, Scope.READ)
    found = visible(caller, job_id)
    wait_s = wished_wait_s(prefer)
    if wait_s:
        say_whether_waited(response, wait_s, wait_until_finished(found, wait_s))
    job = jobs_of(caller).only(*DETAIL_FIELDS).filter(pk=found).first()
    if job is None:
        raise not_found("There is no such job.")
    return JobDetail.of(job, waiting_for(job))


@api.get(
    "/jobs/{job_id}/outputs",
    response={200: OutputPage, **refusals(404, 422)},
    summary="Read what a job emits",
)
def read_job_outputs(
    request: HttpRequest,
    job_id: str,
    after: Annotated[int | None, Query(**BIGINT)] = None,
    limit: Annotated[int, Query(ge=1, le=OUTPUTS_MAX)] = OUTPUTS,
) -> OutputPage:
    """In the order of `seq`, each once, however often the job ran. A page holds at most 1 MiB,
    or one output. To follow a job, ask again with the last `seq` you have seen."""
    found = visible(caller_with(request, Scope.READ), job_id)
    # Read first: a job that has ended emits nothing more.
    state = Job.objects.filter(pk=found).values_list("state", flat=True).first()
    if state is None:
        raise not_found("There is no such job.")
    page = read_outputs(found, after, limit=limit)
    outputs = [OutputOut(**vars(output)) for output in page.outputs]
    return OutputPage(outputs=outputs, next=page.next, state=State(state))


@api.get("/queues", response={200: list[QueueOut], **refusals()}, summary="Load of the queues")
def list_queues(request: HttpRequest) -> list[QueueOut]:
    """Of all tenants together."""
    caller_with(request, Scope.READ)
    paused = {row.name: row for row in pauses.listed() if row.kind == Pausable.QUEUE}
    known = breakers()
    return [
        QueueOut.of(load, paused.get(load.name), known.get(load.name)) for load in queue_loads()
    ]


def say_whether_waited(response: HttpResponse, wait_s: int, waited: bool) -> None:
    """An answer given at once, for want of a seat, must not look like the end of a wait."""
    if waited:
        response["Preference-Applied"] = f"wait={wait_s}"
    else:
        response["Retry-After"] = str(NO_SEAT_RETRY_AFTER_S)


def jobs_of(caller: Caller) -> QuerySet[Job]:
    return Job.objects.all() if caller.every_tenant else Job.objects.filter(tenant=caller.tenant)


def visible(caller: Caller, job_id: str) -> UUID:
    """The id of a job the caller may know of. All others do not exist, whatever the reason."""
    try:
        found = jobs_of(caller).filter(pk=UUID(job_id)).values_list("pk", flat=True).first()
    except ValueError:
        found = None
    if found is None:
        raise not_found("There is no such job.")
    return found


def wanted(**filters: str | None) -> dict[str, str]:
    return {name: value for name, value in filters.items() if value is not None}


def cursor_of(seq: int | None) -> str | None:
    """For clients it has no meaning: they must not learn to count in it."""
    if seq is None:
        return None
    return base64.urlsafe_b64encode(PLACE.pack(seq)).rstrip(b"=").decode()


def place_of(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    try:
        (seq,) = PLACE.unpack(base64.urlsafe_b64decode(cursor + "=="))
    except (ValueError, struct.error):
        raise Problem(MALFORMED, "This cursor is not one of ours.", path="cursor") from None
    return int(seq)


PLACE = struct.Struct(">q")


# --- the workers -------------------------------------------------------------------------


@api.get("/workers", response={200: list[WorkerOut], **refusals()}, summary="List the workers")
def list_workers(request: HttpRequest) -> list[WorkerOut]:
    """Those at work first. A worker that is gone is shown for a day."""
    caller_with(request, Scope.OPERATE)
    return list(map(WorkerOut.of, fleet.workers()))


@api.get(
    "/workers/{name}",
    response={200: WorkerDetail, **refusals(404, 422)},
    summary="Read a worker; ask whether it is safe to stop",
)
def read_worker(
    request: HttpRequest,
    response: HttpResponse,
    name: str,
    safe_to_stop: Annotated[
        bool, Query(description="With Prefer: wait=N, answer when it is, or after N s.")
    ] = False,
    prefer: Annotated[str | None, Header(description="wait=N, in seconds.")] = None,
) -> WorkerDetail:
    """For a deploy: send the worker TERM, wait here until nothing runs on it, then remove it."""
    caller = caller_with(request, Scope.OPERATE)
    known_worker(name)
    wait_s = wished_wait_s(prefer) if safe_to_stop else 0
    if wait_s:
        waited = wait_until(lambda: known_worker(name).is_safe, wait_s)
        say_whether_waited(response, wait_s, waited)
    tenant = None if caller.every_tenant else caller.tenant
    return WorkerDetail.seen_by(tenant, known_worker(name))


def known_worker(name: str) -> fleet.Stop:
    stop = fleet.stop_of(name)
    if stop is None:
        raise not_found("There is no such worker.")
    return stop


# --- operate -----------------------------------------------------------------------------


@api.get("/limits", response={200: list[LimitOut], **refusals()}, summary="State of the limits")
def list_limits(request: HttpRequest) -> list[LimitOut]:
    """Rates, pauses and circuit breakers of the downstreams."""
    caller = caller_with(request, Scope.OPERATE)
    # The reason comes from the body of a job, which may be another tenant's.
    return [LimitOut.of(state, tells_reason=caller.every_tenant) for state in limit_states()]


@api.delete(
    "/limits/{name}/pause", response={204: None, **refusals(404)}, summary="End a pause by a job"
)
def end_pause_of_downstream(request: HttpRequest, name: str) -> Status[None]:
    """Of the downstream of this name, for all queues and tenants."""
    caller = caller_with(request, Scope.OPERATE)
    if not caller.every_tenant:
        raise Problem(FORBIDDEN, "A downstream is everybody's: ask somebody who operates all.")
    if not limits.resume(f"downstream:{name}"):
        raise not_found("No job has paused it.")
    log.warning("downstream_resumed", downstream=name, actor=caller.name)
    return Status(204, None)


@api.get("/pauses", response={200: list[PauseOut], **refusals()}, summary="List what is paused")
def list_pauses(request: HttpRequest) -> list[PauseOut]:
    """Queues, tasks and the tenants that you may see."""
    caller = caller_with(request, Scope.OPERATE)
    return [PauseOut.of(row) for row in pauses.listed() if may_see(caller, row)]


@api.post(
    "/pauses",
    response={201: PauseOut, 200: PauseOut, **refusals(400, 415, 422)},
    summary="Pause a queue, a task or a tenant",
)
def pause(request: HttpRequest, wish: NewPause) -> Status[PauseOut]:
    """Nothing of it starts any more; what runs is left alone. Again is 200, with the new end."""
    caller = caller_who_may_pause(request, wish.kind, wish.name)
    if wish.closed and wish.kind != Pausable.QUEUE:
        raise Problem(INVALID, "Only a queue can be closed.", path="$.closed")
    if not pauses.still_ahead(wish.until):
        raise Problem(INVALID, "That time is over.", path="$.until")
    is_new = pauses.pause(
        wish.kind, wish.name, actor=caller.name, reason=wish.reason, until=wish.until,
        closed=wish.closed,
    )  # fmt: skip
    found = pauses.find(wish.kind, wish.name)
    if found is None:
        raise not_found("It has ended already.")
    return Status(201 if is_new else 200, PauseOut.of(found, doubt(wish.kind, wish.name)))


@api.delete("/pauses", response={204: None, **refusals(404, 422)}, summary="Resume")
def resume(
    request: HttpRequest, kind: Pausable, name: Annotated[str, Query(max_length=255)]
) -> Status[None]:
    caller = caller_who_may_pause(request, kind, name)
    if not pauses.resume(kind, name, actor=caller.name):
        raise not_found("It is not paused.")
    return Status(204, None)


def caller_who_may_pause(request: HttpRequest, kind: Pausable, name: str) -> Caller:
    """A queue and a task are everybody's; a client of one tenant may pause that one."""
    caller = caller_with(request, Scope.OPERATE)
    if not (caller.every_tenant or (kind == Pausable.TENANT and name == caller.tenant)):
        raise Problem(
            FORBIDDEN,
            "You may pause and resume your own tenant only. Queues and tasks are everybody's:"
            " they need an API client of every tenant, or a person who operates.",
        )
    return caller


def may_see(caller: Caller, paused: Paused) -> bool:
    is_anothers = paused.kind == Pausable.TENANT and paused.name != caller.tenant
    return caller.every_tenant or not is_anothers


@api.post(
    "/jobs/{job_id}/cancel",
    response={202: JobState, **refusals(400, 404, 409, 415, 422)},
    summary="Cancel a job",
)
def cancel_job(
    request: HttpRequest, job_id: str, why: Annotated[Reason | None, Body()] = None
) -> Status[JobState]:
    """What waits is cancelled at once; what runs is asked to stop and still says running."""
    caller = caller_with(request, Scope.ENQUEUE, Scope.OPERATE)
    found = visible(caller, job_id)
    state = ledger.cancel(found, actor=caller.name, reason=why.reason if why else "")
    if state is None:
        raise Problem(WRONG_STATE, f"The job is {operate.why_not(Action.CANCEL, found)}.")
    return Status(202, JobState(id=found, state=State(state)))


@api.post(
    "/jobs/{job_id}/replay",
    response={202: JobState, **refusals(400, 404, 409, 415, 422)},
    summary="Replay a failed job",
)
def replay_job(request: HttpRequest, job_id: str, why: Reason) -> Status[JobState]:
    """The same id, key and payload once more, with fresh counters."""
    caller = caller_with(request, Scope.OPERATE)
    found = visible(caller, job_id)
    if not operate.replay(found, actor=caller.name, reason=why.reason):
        raise Problem(WRONG_STATE, f"Not replayed: {operate.why_not(Action.REPLAY, found)}.")
    return Status(202, JobState(id=found, state=State.QUEUED))
