"""The witness: a process that jobs report to, and that believes nobody else.

    python -m devtools.drill.witness --port 9000

A run tells it that it begins, what it does to the world and how it ends, all over one TCP
connection. When the connection breaks before the end, the kernel has closed it: the process
is dead, and the run ended at that moment. ``GET /books`` is everything it saw. ``POST /outage``
makes each effect slow, then refused, until it is told otherwise.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import time
import urllib.request
from collections.abc import Sequence
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from devtools.console import say
from devtools.drill.books import DIED, Books, Run
from devtools.ports import LOOPBACK
from devtools.serving import serving

ANSWERS_WITHIN_S = 30.0
# What a call takes in an outage. Calls of one length would come back in waves.
SLOW_S = (0.5, 1.5)


class Ear(BaseHTTPRequestHandler):
    """One connection: one run."""

    server: Witness
    protocol_version = "HTTP/1.1"  # the connection stays open between two requests
    run: Run | None = None

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def finish(self) -> None:
        if self.run is not None:
            self.server.books.end(self.run, DIED)
        super().finish()

    def do_GET(self) -> None:
        self.answer(200, self.server.books.page())

    def do_POST(self) -> None:
        told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        books = self.server.books
        if self.path == "/begin":
            self.run = books.begin(**told)
            self.answer(201, {"run": self.run.number})
        elif self.path == "/outage":
            self.server.is_out = told["is_out"]
            self.answer(200, {})
        elif self.run is None:
            self.answer(409, {"reason": "no run has begun on this connection"})
        elif self.path == "/effect" and self.server.is_out:
            time.sleep(random.uniform(*SLOW_S))
            self.answer(503, {"new": False})
        elif self.path == "/effect":
            is_new = books.effect(self.run, self.headers.get("Idempotency-Key", ""))
            self.answer(201 if is_new else 200, {"new": is_new})
        else:
            books.end(self.run, told["how"])
            self.answer(200, {})

    def answer(self, status: int, page: dict[str, Any]) -> None:
        body = json.dumps(page).encode()
        self.send_response_only(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Witness(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, port: int, books: Books) -> None:
        super().__init__((LOOPBACK, port), Ear)
        self.books = books
        self.is_out = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A process that dies in the middle of a word is what this is for."""


# --- its process ----------------------------------------------------------------------------


def witness() -> AbstractContextManager[str]:
    """Its address."""
    return serving("witness", "devtools.drill.witness")


def books_of(url: str) -> Books:
    with urllib.request.urlopen(f"{url}/books", timeout=ANSWERS_WITHIN_S) as answer:
        return Books.of(json.load(answer))


def set_outage(url: str, is_out: bool) -> None:
    body = json.dumps({"is_out": is_out}).encode()
    urllib.request.urlopen(f"{url}/outage", body, timeout=ANSWERS_WITHIN_S).close()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m devtools.drill.witness", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args(argv)
    with Witness(given.port, Books()) as server:
        say(f"witness: listening on {LOOPBACK}:{given.port}")
        server.serve_forever()


if __name__ == "__main__":
    main()
