"""A corner of the broker for one test, and messages of any shape to put there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import redis
from django.db import connection
from kombu import Connection, Exchange, Queue


class Corner:
    """Its keys bear a prefix that nobody else uses; ``env`` takes a process there."""

    def __init__(self, url: str | None = None) -> None:
        self.url = url or os.environ["BROKER_URL"]
        self.prefix = f"{uuid4().hex[:12]}:"
        self.env = {"BROKER_URL": self.url, "BROKER_PREFIX": self.prefix}

    def send_task(self, name: str, *args: Any, queue: str = "default", **headers: Any) -> str:
        """As Celery's own publisher would write it; ``headers`` win."""
        task_id = str(uuid4())
        self.send([args, {}, {}], headers={"task": name, "id": task_id, **headers}, queue=queue)
        return task_id

    def send(
        self,
        body: Any,
        *,
        headers: Mapping[str, Any] | None = None,
        queue: str = "default",
        content_type: str = "application/json",
    ) -> None:
        """``body`` as JSON, but ``str`` and ``bytes`` as they are."""
        if not isinstance(body, str | bytes):
            body = json.dumps(body)
        declared = Queue(queue, Exchange("default"), routing_key=queue)
        options = {"global_keyprefix": self.prefix}
        with Connection(self.url, transport_options=options) as broker:
            broker.Producer().publish(
                body,
                exchange=declared.exchange,
                routing_key=queue,
                declare=[declared],
                headers=dict(headers or {}),
                content_type=content_type,
                content_encoding="utf-8" if isinstance(body, str) else "binary",
            )

    def push(self, *items: bytes, queue: str = "default") -> None:
        """What a stranger writes into the list of a queue."""
        with redis.Redis.from_url(self.url) as client:
            client.lpush(self.prefix + queue, *items)

    def waiting(self, queue: str = "default") -> int:
        with redis.Redis.from_url(self.url) as client:
            return int(client.llen(self.prefix + queue))

    def unacked(self) -> int:
        with redis.Redis.from_url(self.url) as client:
            return int(client.hlen(self.prefix + "unacked"))

    def clear(self) -> None:
        with redis.Redis.from_url(self.url) as client:
            for key in client.scan_iter(match=f"{self.prefix}*"):
                client.delete(key)


@contextmanager
def trace_table() -> Iterator[Trace]:
    """Where ``tests.plain_tasks`` leave their traces."""
    execute("CREATE TABLE trace (seq bigserial, note text, backend int)")
    try:
        yield Trace()
    finally:
        execute("DROP TABLE trace")


class Trace:
    @property
    def notes(self) -> list[str]:
        return [row[0] for row in execute("SELECT note FROM trace ORDER BY seq")]

    @property
    def pids(self) -> list[int]:
        """Where the task wrote its process in place of the backend."""
        return self.backends

    @property
    def backends(self) -> list[int]:
        return [row[0] for row in execute("SELECT backend FROM trace ORDER BY seq")]


def execute(sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return cursor.fetchall() if cursor.description else []
