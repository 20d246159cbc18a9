"""Posts every order twice and out of order, as clients do that lost an answer."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

from devtools.demo.orders_file import Order

TASK = "orders.tasks.capture"
TIMES_EACH = 2
AT_ONCE = 8
GIVE_UP_AFTER_S = 60.0
PAUSE_S = 0.2
ACCEPTED, REPEATED = 202, 200


@dataclass(frozen=True)
class Answer:
    """What one POST came to. Without a job id, ``problem`` says why."""

    order_id: int
    status: int
    job_id: str | None = None
    problem: str = ""


class Posting:
    """All calls, under way in the background."""

    def __init__(self, futures: Sequence[Future[Answer]]) -> None:
        self._futures = futures

    @property
    def total(self) -> int:
        return len(self._futures)

    @property
    def answers(self) -> list[Answer]:
        return [future.result() for future in self._futures if future.done()]


@contextmanager
def posting(url: str, token: str, orders: Sequence[Order], *, seed: int) -> Iterator[Posting]:
    """Posts while the block runs; what is not sent at its end is not sent at all."""
    calls = list(orders) * TIMES_EACH
    random.Random(seed).shuffle(calls)
    stopping = threading.Event()
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=url, headers=headers, timeout=10.0) as client:
        executor = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="post")
        try:
            yield Posting([executor.submit(post, client, order, stopping) for order in calls])
        finally:
            stopping.set()
            executor.shutdown(cancel_futures=True)


def post(client: httpx.Client, order: Order, stopping: threading.Event) -> Answer:
    """Until there is a definite answer: the key makes it safe to ask again."""
    give_up_at = time.monotonic() + GIVE_UP_AFTER_S
    while True:
        answer, pause_s = _post_once(client, order)
        if not pause_s or time.monotonic() > give_up_at or stopping.wait(pause_s):
            return answer


def _post_once(client: httpx.Client, order: Order) -> tuple[Answer, float]:
    """The answer, and how many seconds later to try again."""
    try:
        response = client.post(
            "/api/jobs",
            headers={"Idempotency-Key": order.key},
            json={"task": TASK, "payload": vars(order)},
        )
    except httpx.TransportError as error:
        return Answer(order.order_id, 0, problem=f"no answer: {error!r}"), PAUSE_S
    if response.status_code in (ACCEPTED, REPEATED):
        return Answer(order.order_id, response.status_code, str(response.json()["id"])), 0.0
    refused = Answer(order.order_id, response.status_code, problem=_explanation(response))
    return refused, float(response.headers.get("Retry-After", 0.0))


def _explanation(response: httpx.Response) -> str:
    """Of a problem document its detail, of anything else its beginning."""
    try:
        problem = response.json()
        return str(problem.get("detail") or problem["title"])
    except (ValueError, KeyError, AttributeError):
        return response.text[:100]
