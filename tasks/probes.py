"""The addresses that machines ask: alive, ready, metrics. They need no credentials."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from tasks.health import WATCH, readiness
from tasks.scrape import exposition


def answer_machines(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """The first middleware: probes and Prometheus ask by an address that no ALLOWED_HOSTS names."""
    views = {"/healthz": healthz, "/readyz": readyz, "/metrics": metrics}

    def answer(request: HttpRequest) -> HttpResponse:
        view = views.get(request.path_info)
        return view(request) if view else get_response(request)

    return answer


@require_safe
def healthz(request: HttpRequest) -> HttpResponse:
    """This process answers. Asks nobody else: a restart does not cure a database."""
    return JsonResponse({"status": "alive"})


@require_safe
def readyz(request: HttpRequest) -> HttpResponse:
    WATCH.start()
    ready = readiness()
    status = 503 if ready.status == "unavailable" else 200
    return JsonResponse({"status": ready.status, **asdict(ready)}, status=status)


@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    return HttpResponse(exposition(), content_type=CONTENT_TYPE_PLAIN_0_0_4)
