"""Errors of the HTTP interface as ``application/problem+json`` (RFC 9457).

``type`` is stable and is what programs should look at; ``title`` says what kind it is,
``detail`` what happened. ``path`` names a place in the request body (``$.payload.amount``),
``fields`` several. Values of a request never come back in an error: they can be secrets.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import singledispatch, wraps
from typing import Any

import structlog
from django.core.exceptions import RequestDataTooBig
from django.core.signals import got_request_exception
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.http.request import UnreadablePostError
from django.views.decorators.csrf import csrf_exempt
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, HttpError, ValidationError

from tasks.errors import InvalidKey, InvalidPayload, KeyConflict, QueueClosed, Rejected, UnknownTask

CONTENT_TYPE = "application/problem+json"
# Seconds. A database that restarts or fails over is back within a few of them.
DATABASE_RETRY_AFTER_S = 5

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Kind:
    """One ``type`` of problem."""

    name: str
    status: int
    title: str

    @property
    def type(self) -> str:
        return f"/problems/{self.name}"


MALFORMED = Kind("malformed", 400, "The request cannot be read or stored.")
INVALID_KEY = Kind("invalid-key", 400, "A key is missing or cannot be stored.")
UNAUTHENTICATED = Kind("unauthenticated", 401, "Say who you are.")
FORBIDDEN = Kind("forbidden", 403, "You may not do this.")
NOT_FOUND = Kind("not-found", 404, "There is nothing here for you.")
METHOD_NOT_ALLOWED = Kind("method-not-allowed", 405, "This address has other methods.")
WRONG_STATE = Kind("wrong-state", 409, "The job is in another state.")
TOO_LARGE = Kind("too-large", 413, "The request is too large.")
WRONG_MEDIA_TYPE = Kind("wrong-media-type", 415, "The body must be JSON.")
INVALID = Kind("invalid", 422, "The request is understood and does not fit.")
UNKNOWN_TASK = Kind("unknown-task", 422, "There is no such task.")
KEY_CONFLICT = Kind("key-conflict", 422, "The idempotency key names another request.")
REJECTED = Kind("rejected", 429, "Not now.")
INTERNAL = Kind("internal", 500, "We failed; it is in our log.")
CLOSED = Kind("queue-closed", 503, "The queue is closed for maintenance.")
UNAVAILABLE = Kind("unavailable", 503, "The ledger does not answer.")

KINDS = (
    MALFORMED, INVALID_KEY, UNAUTHENTICATED, FORBIDDEN, NOT_FOUND, METHOD_NOT_ALLOWED, WRONG_STATE,
    TOO_LARGE, WRONG_MEDIA_TYPE, INVALID, UNKNOWN_TASK, KEY_CONFLICT, REJECTED, INTERNAL,
    CLOSED, UNAVAILABLE,
)  # fmt: skip


class Problem(Exception):
    """An answer that says what is wrong. ``members`` go into the body beside the standard ones."""

    def __init__(
        self, kind: Kind, detail: str, *, headers: Mapping[str, str] | None = None, **members: Any
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.headers = headers or {}
        self.members = members

    def response(self) -> HttpResponse:
        kind = self.kind
        body = {"type": kind.type, "title": kind.title, "status": kind.status}
        return HttpResponse(
            json.dumps({**body, "detail": self.detail, **self.members}),
            status=kind.status,
            content_type=CONTENT_TYPE,
            headers=self.headers,
        )


def answer_with_problems(api: NinjaAPI) -> None:
    """Every exception of a view becomes a problem. django-ninja looks up the closest class."""
    for error in (Exception, HttpError, Http404, ValidationError):
        api.add_exception_handler(error, answer)


def answer(request: HttpRequest, error: Any) -> HttpResponse:
    problem = problem_of(error)
    if problem.kind is INTERNAL:
        log.exception("api_failed", path=request.path, exc_info=error)
        # What Django does for an exception that no one handles: Sentry and the test client listen.
        got_request_exception.send(sender=answer, request=request)
    return problem.response()


View = Callable[..., HttpResponse]


def with_problems(view: View) -> View:
    """For answers that django-ninja gives without raising: a wrong method."""

    @wraps(view)
    def wrapped(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        response = view(request, *args, **kwargs)
        if isinstance(response, HttpResponseNotAllowed):
            return method_not_allowed(response["Allow"]).response()
        return response

    return wrapped


@csrf_exempt
def no_such_address(request: HttpRequest) -> HttpResponse:
    return not_found("There is no such address.").response()


def not_found(detail: str) -> Problem:
    return Problem(NOT_FOUND, detail)


def method_not_allowed(allowed: str) -> Problem:
    return Problem(METHOD_NOT_ALLOWED, f"Allowed: {allowed}.", headers={"Allow": allowed})


# --- which problem an exception is --------------------------------------------------------


@singledispatch
def problem_of(error: Exception) -> Problem:
    return Problem(INTERNAL, "The fault is not in your request.")


@problem_of.register
def _(error: Problem) -> Problem:
    return error


@problem_of.register
def _(error: InvalidPayload) -> Problem:
    kind = TOO_LARGE if error.too_large else MALFORMED if error.malformed else INVALID
    return Problem(kind, error.message, path=error.path)


@problem_of.register
def _(error: InvalidKey) -> Problem:
    return Problem(INVALID_KEY, str(error))


@problem_of.register
def _(error: KeyConflict) -> Problem:
    detail = "The key was used for a request that differs in these fields."
    return Problem(KEY_CONFLICT, detail, fields=list(error.fields))


@problem_of.register
def _(error: UnknownTask) -> Problem:
    return Problem(UNKNOWN_TASK, "No task of this name can be enqueued here.", path="$.task")


@problem_of.register
def _(error: Rejected) -> Problem:
    return Problem(REJECTED, f"Not accepted: {error.reason}.", **reason_and_retry(error))


@problem_of.register
def _(error: QueueClosed) -> Problem:
    return Problem(CLOSED, "Not accepted: the queue is closed.", **reason_and_retry(error))


def reason_and_retry(error: Rejected) -> dict[str, Any]:
    return {"headers": {"Retry-After": str(error.retry_after)}, "reason": str(error.reason)}


@problem_of.register(OperationalError)
@problem_of.register(InterfaceError)
def _(error: Exception) -> Problem:
    log.warning("database_unavailable", error=str(error))
    retry = {"Retry-After": str(DATABASE_RETRY_AFTER_S)}
    return Problem(UNAVAILABLE, "Nothing was accepted. Try again later.", headers=retry)


@problem_of.register
def _(error: RequestDataTooBig) -> Problem:
    return Problem(TOO_LARGE, "The body is larger than any payload may be.")


@problem_of.register
def _(error: UnreadablePostError) -> Problem:
    return Problem(MALFORMED, "The body ended early.")


@problem_of.register
def _(error: Http404) -> Problem:
    return not_found("There is no such thing.")


@problem_of.register
def _(error: AuthenticationError) -> Problem:
    return unauthenticated("Send an API client's token, or log in.")


@problem_of.register
def _(error: HttpError) -> Problem:
    """django-ninja wraps whatever the parser of the body raises."""
    if isinstance(error.__cause__, Exception):
        return problem_of(error.__cause__)
    known = (kind for kind in KINDS if kind.status == error.status_code)
    return Problem(next(known, INTERNAL), error.message)


@problem_of.register
def _(error: ValidationError) -> Problem:
    """What pydantic found in body, query or headers."""
    found = [(place(e["loc"]), wording(e)) for e in error.errors]
    if found[0] == ("$", WORDINGS["missing"]):
        return Problem(MALFORMED, "The request has no body. A body needs a Content-Length.")
    return Problem(
        INVALID,
        "; ".join(f"{path}: {text}" for path, text in found),
        path=found[0][0],
        fields=[path for path, _ in found],
    )


def unauthenticated(detail: str, challenge: str = "Bearer") -> Problem:
    return Problem(UNAUTHENTICATED, detail, headers={"WWW-Authenticate": challenge})


def place(location: tuple[str | int, ...]) -> str:
    """``("body", "job", "priority")`` is ``$.priority``; of the query it is the bare name."""
    source, *steps = location
    if source != "body":
        return ".".join(map(str, steps))
    inside = steps[1:]  # the first one is the name of the view's parameter
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in inside)


WORDINGS = {
    "missing": "required",
    "extra_forbidden": "no such field",
    "dict_type": "must be an object",
}


def wording(error: Mapping[str, Any]) -> str:
    return WORDINGS.get(error["type"]) or str(error["msg"]).removeprefix("Value error, ")
