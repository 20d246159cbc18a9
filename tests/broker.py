"""A corner of the broker for one test, and messages of any shape to put there.

A test whose promise is about any broker takes the fixture ``corner`` under ``on_each_broker``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
import redis
from django.db import connection
from kombu import Connection, Exchange, Queue

from config.topology import TOPOLOGY as SHIPPED
from devtools.pytest_rabbitmq import rabbitmq_url
from tests.sample_topology import TOPOLOGY

BROKERS = ("redis", "rabbitmq")
on_each_broker = pytest.mark.parametrize("corner", BROKERS, indirect=True)


class Corner:
    """Its keys bear a prefix that nobody else uses; ``env`` takes a process there."""

    def __init__(self, url: str | None = None) -> None:
        self.url = url or os.environ["BROKER_URL"]
        self.prefix = f"{uuid4().hex[:12]}:"
        self.env = {"BROKER_URL": self.url, "BROKER_PREFIX": self.prefix}

    @property
    def options(self) -> dict[str, Any]:
        """Of the transport, for whoever connects to here."""
        return {"global_keyprefix": self.prefix}

    @property
    def port(self) -> int:
        port = urlsplit(self.url).port
        assert port is not None
        return port

    def url_at(self, port: int) -> str:
        """Of a proxy on this machine, in place of the broker's own address."""
        return self.url.replace(f":{self.port}/", f":{port}/")

    def connected(self) -> Connection:
        return Connection(self.url, transport_options=self.options)

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
        with self.connected() as broker:
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

    def messages(self, queue: str = "default") -> list[dict[str, Any]]:
        """Oldest first; they stay where they are."""
        with redis.Redis.from_url(self.url) as client:
            return [json.loads(raw) for raw in client.lrange(self.prefix + queue, 0, -1)][::-1]

    def ids(self, queue: str = "default") -> list[str]:
        return [message["headers"]["id"] for message in self.messages(queue)]

    def lose(self, queue: str = "default") -> None:
        with redis.Redis.from_url(self.url) as client:
            client.delete(self.prefix + queue)

    def unacked(self) -> int:
        with redis.Redis.from_url(self.url) as client:
            return int(client.hlen(self.prefix + "unacked"))

    def clear(self) -> None:
        with redis.Redis.from_url(self.url) as client:
            for key in client.scan_iter(match=f"{self.prefix}*"):
                client.delete(key)


class RabbitCorner(Corner):
    """The same on RabbitMQ."""

    @property
    def options(self) -> dict[str, Any]:
        return {"name_prefix": self.prefix}

    def messages(self, queue: str = "default") -> list[dict[str, Any]]:
        with self.connected() as broker:
            channel = broker.channel()
            if not self.exists(queue):
                return []
            found = []
            # Not acked: they return to their places when the connection is closed.
            while message := channel.basic_get(queue):
                found.append({"headers": message.headers, "body": message.body})
            return found

    def waiting(self, queue: str = "default") -> int:
        with self.connected() as broker:
            try:
                return int(broker.channel().queue_declare(queue, passive=True).message_count)
            except broker.channel_errors:
                return 0

    def exists(self, queue: str) -> bool:
        with self.connected() as broker:
            try:
                broker.channel().queue_declare(queue, passive=True)
            except broker.channel_errors:
                return False
            return True

    def lose(self, queue: str = "default") -> None:
        with self.connected() as broker:
            broker.channel().queue_purge(queue)

    def clear(self) -> None:
        with self.connected() as broker:
            for queue in {*SHIPPED.queues, *TOPOLOGY.queues}:
                broker.channel().queue_delete(queue)


def corner_of(broker: str) -> Corner:
    return RabbitCorner(rabbitmq_url()) if broker == "rabbitmq" else Corner()


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
