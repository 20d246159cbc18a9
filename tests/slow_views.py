"""A site whose views enqueue and then take their time; for a web server under test."""

from __future__ import annotations

import time

from django.http import HttpRequest, HttpResponse
from django.urls import path

from project.settings import *  # noqa: F403
from tasks.enqueue import enqueue

ROOT_URLCONF = "tests.slow_views"
DATABASES["default"]["ATOMIC_REQUESTS"] = True  # noqa: F405


def enqueue_then_wait(request: HttpRequest) -> HttpResponse:
    from tests.ledger_tasks import leave_trace, trace

    answer = enqueue(trace, {"note": "the job"})
    time.sleep(1.0)  # an eager worker would have run it by now
    leave_trace("the view")
    return HttpResponse(str(answer.job_id))


def enqueue_then_raise(request: HttpRequest) -> HttpResponse:
    from tests.ledger_tasks import trace

    enqueue(trace, {"note": "never"})
    raise RuntimeError("the view failed")


urlpatterns = [path("slow", enqueue_then_wait), path("failing", enqueue_then_raise)]
