"""Answers the refusals of ``enqueue`` that a view of the project let rise: no 500 for "not now".

The same problem details as those of the HTTP interface. A view that catches them answers itself.
"""

from __future__ import annotations

import structlog
from django.http import HttpRequest, HttpResponse
from django.utils.deprecation import MiddlewareMixin

from tasks.errors import InvalidKey, InvalidPayload, KeyConflict, Rejected, UnknownTask
from tasks.problems import problem_of

REFUSALS = (Rejected, KeyConflict, InvalidKey, InvalidPayload, UnknownTask)

log = structlog.get_logger(__name__)


class RefusalMiddleware(MiddlewareMixin):
    """429 with Retry-After, 503 for a closed queue, 400, 413 or 422 for what is wrong.

    With ``ATOMIC_REQUESTS`` the transaction has been rolled back by then, as for any exception.
    """

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        if not isinstance(error, REFUSALS):
            return None
        problem = problem_of(error)
        # The fault may be the view's: its author finds the place, never a value.
        log.warning(
            "enqueue_refused", path=request.path, status=problem.kind.status, error=str(error)
        )
        return problem.response()
