"""The addresses that machines ask: alive, ready, metrics. They need no credentials."""

from __future__ import annotations

from dataclasses import asdict

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from tasks.health import WATCH, readiness
from tasks.scrape import exposition


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
