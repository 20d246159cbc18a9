"""The servers of ``DATABASE_URL`` and ``BROKER_URL``: whether anybody listens there."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

VARIABLES = ("DATABASE_URL", "BROKER_URL")
DEFAULT_PORTS = {
    "postgres": 5432,
    "postgresql": 5432,
    "redis": 6379,
    "rediss": 6379,
    "sentinel": 26379,
    "amqp": 5672,
    "amqps": 5671,
}
# Long enough for a lost packet to be sent again.
ANSWER_WITHIN_S = 3.0


class ServerSilent(Exception):
    """Names the variable, the address and the remedy, in one line."""


def refuse_silent_servers(env: Mapping[str, str]) -> None:
    """Raises ServerSilent. Of several addresses in one variable, one that answers is enough."""
    for variable in VARIABLES:
        addresses = list(addresses_of(env.get(variable, "")))
        if addresses and not any(answers(*address) for address in addresses):
            shown = ", ".join(f"{host}:{port}" for host, port in addresses)
            raise ServerSilent(
                f"{variable}: nobody answers at {shown}."
                f" Start that server, or unset {variable} to let ./dev start its own."
            )


def addresses_of(urls: str) -> Iterator[tuple[str, int]]:
    """Host and port of each URL, as Celery separates them; none of what is not TCP."""
    for url in urls.split(";"):
        parts = urlsplit(url)
        try:
            port = parts.port or DEFAULT_PORTS.get(parts.scheme)
        except ValueError:  # not a number: whoever uses the URL says more
            continue
        if parts.hostname and port:
            yield parts.hostname, port


def answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=ANSWER_WITHIN_S):
            return True
    except OSError:
        return False
