"""Steady traffic over HTTP: every caller asks again, under the same key, until it has an answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

AT_ONCE = 6
PAUSE_S = 0.3
GIVE_UP_AFTER_S = 120.0
ANSWER_WITHIN_S = 10.0


@dataclass(frozen=True)
class Order:
    """A job that somebody wants. ``expects``: how it must end, or "effect" where no ledger is.

    ``options``: what else is posted, as ``priority``.
    """

    key: str
    task: str
    payload: Mapping[str, Any]
    expects: str = "succeeded"
    after_s: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """``job_id``: "" when it was never accepted. ``first_s``: what the first call took.

    ``asked_at``, ``answered_at``: when the first call began and the last one ended, epoch seconds.
    """

    order: Order
    job_id: str
    first_s: float
    calls: int
    problem: str = ""
    asked_at: float = 0.0
    answered_at: float = 0.0


class Traffic:
    """What is sent while the block runs."""

    def __init__(self, futures: Sequence[Future[Answer]]) -> None:
        self._futures = futures

    @property
    def ends(self) -> bool:
        return all(future.done() for future in self._futures)

    @property
    def answers(self) -> list[Answer]:
        return [future.result() for future in self._futures if future.done()]


@contextmanager
def traffic(
    url: Callable[[], str], token: str, orders: Sequence[Order], *, per_s: float
) -> Iterator[Traffic]:
    """``url`` is asked before each call: the web server may move."""
    stopping = threading.Event()
    began = time.monotonic()
    with httpx.Client(
        headers={"Authorization": f"Bearer {token}"}, timeout=ANSWER_WITHIN_S
    ) as client:
        executor = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="traffic")

        def send(number: int, order: Order) -> Answer:
            stopping.wait(max(0.0, began + number / per_s - time.monotonic()))
            return post(client, url, order, stopping)

        try:
            yield Traffic([executor.submit(send, *numbered) for numbered in enumerate(orders)])
        finally:
            stopping.set()
            executor.shutdown(cancel_futures=True)


def post(
    client: httpx.Client, url: Callable[[], str], order: Order, stopping: threading.Event
) -> Answer:
    asked_at, began, calls, first_s = time.time(), time.monotonic(), 0, 0.0
    while True:
        job_id, problem, asks_again = post_once(client, url(), order)
        calls += 1
        first_s = first_s or time.monotonic() - began
        late = time.monotonic() - began > GIVE_UP_AFTER_S
        if not asks_again or late or stopping.wait(PAUSE_S):
            return Answer(order, job_id, first_s, calls, problem, asked_at, time.time())


def post_once(client: httpx.Client, url: str, order: Order) -> tuple[str, str, bool]:
    """The id, else the problem; whether it makes sense to ask again."""
    try:
        response = client.post(
            f"{url}/api/jobs",
            headers={"Idempotency-Key": order.key},
            json={"task": order.task, "payload": order.payload, **order.options, **due(order)},
        )
    except httpx.TransportError as error:
        return "", f"no answer: {error!r}", True
    if response.status_code in (200, 202):
        return str(response.json()["id"]), "", False
    return "", f"{response.status_code} {response.text[:200]}", response.status_code >= 429


def due(order: Order) -> dict[str, str]:
    if not order.after_s:
        return {}
    return {"run_at": (datetime.now(UTC) + timedelta(seconds=order.after_s)).isoformat()}
