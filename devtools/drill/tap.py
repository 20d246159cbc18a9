"""Listens to what is put on the broker, as it happens."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import redis


def messages_to(queue: str, url: str, stopping: threading.Event) -> Iterator[str]:
    """Each message in the moment in which Redis gets it. It is never silent there for long, so
    ``stopping`` is noticed."""
    with redis.Redis.from_url(url) as broker, broker.monitor() as monitor:
        while not stopping.is_set():
            name, _, rest = monitor.next_command()["command"].partition(" ")
            key, _, message = rest.partition(" ")
            if (name, key) == ("LPUSH", queue):
                yield message
