"""The published site with a bound on its default queue, and how long each answer took it."""

from __future__ import annotations

import time
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from tasks.topology import Queue, Topology
from tests.published_site import *  # noqa: F403

ROOM = 200
TASKS_TOPOLOGY = Topology.of([Queue("default", processes=2, max_waiting=ROOM)])


def timed(get_response: Callable[[HttpRequest], HttpResponse]) -> object:
    def answer(request: HttpRequest) -> HttpResponse:
        began = time.perf_counter()
        response = get_response(request)
        response["Server-Ms"] = f"{(time.perf_counter() - began) * 1000:.2f}"
        return response

    return answer


MIDDLEWARE = ["tests.narrow_site.timed", *MIDDLEWARE]  # noqa: F405
