"""Free TCP ports on the loopback, and starting on one in spite of the race for it."""

from __future__ import annotations

import argparse
import random
import socket
from collections.abc import Callable

LOOPBACK = "127.0.0.1"
# Below what the kernel takes for outgoing connections, so that a server can come back on its port.
RANGE = (20_000, 32_000)
ATTEMPTS = 5
HIGHEST = 65_535
_random = random.SystemRandom()


class PortTaken(Exception):
    """Somebody else bound the port first."""


def port_number(text: str) -> int:
    """For argparse."""
    if not text.isdecimal() or not 1 <= int(text) <= HIGHEST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: 1 to {HIGHEST}")
    return int(text)


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    for _ in range(1000):
        port = _random.randrange(*RANGE)
        if is_free(port):
            return port
    raise PortTaken(f"no free port between {RANGE[0]} and {RANGE[1]}")


def start_on_free_port(start: Callable[[int], None], *, wanted: int | None = None) -> int:
    """Calls ``start(port)`` until it does not raise PortTaken. A ``wanted`` port is tried alone."""
    if wanted is not None:
        if not is_free(wanted):
            raise PortTaken(f"port {wanted} is taken by another process")
        start(wanted)
        return wanted
    for attempt in range(ATTEMPTS):
        port = free_port()
        try:
            start(port)
        except PortTaken:
            if attempt == ATTEMPTS - 1:
                raise
        else:
            return port
    raise AssertionError("unreachable")
