"""A downstream for tests: it counts who calls it, when and how many at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from devtools.ports import LOOPBACK


@dataclass(frozen=True)
class Call:
    """One call, with the time of day of its beginning and end."""

    path: str
    began_at: float
    ended_at: float
    status: int


@dataclass
class Stub:
    """``status`` and ``takes_s`` can be changed at any time: what calls get from then on."""

    status: int = 200
    takes_s: float = 0.0
    retry_after_s: int = 0
    calls: list[Call] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    url: str = ""

    def answer(self, path: str) -> int:
        began_at = time.time()
        with self.lock:
            status, takes_s = self.status, self.takes_s
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        time.sleep(takes_s)  # what a slow downstream does
        with self.lock:
            self.at_once -= 1
            self.calls.append(Call(path, began_at, time.time(), status))
        return status

    def between(self, begin: float, end: float) -> list[Call]:
        """Calls that began in this time, in order."""
        found = [call for call in self.calls if begin < call.began_at < end]
        return sorted(found, key=lambda call: call.began_at)


@contextmanager
def stub() -> Iterator[Stub]:
    known = Stub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(known.answer(self.path))
            self.send_header("Retry-After", str(known.retry_after_s))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            return

    server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
    server.daemon_threads = True
    known.url = f"http://{LOOPBACK}:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield known
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
