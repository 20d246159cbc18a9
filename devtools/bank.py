"""A bank to rehearse with: it misbehaves from a seed, limits its callers and keeps honest books.

    python -m devtools.bank --port 9000 --limit 20 --seed 7

``POST /charges`` with an ``Idempotency-Key`` charges a card at most once per key, as real payment
providers do. ``GET /books`` is what the bank itself saw: every call, every charge, the most calls
at once.
"""

from __future__ import annotations

import argparse
import json
import random
import select
import socket
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from devtools.console import say
from devtools.ports import LOOPBACK

# --- what it refuses for good ---------------------------------------------------------------

# The last digits decide, as with the test cards of real providers.
REFUSED_CARDS = {"0002": "card_declined", "9995": "insufficient_funds", "0069": "card_expired"}


def refusal(amount_cents: int, card: str) -> str | None:
    """Why the bank never charges this, or None."""
    if amount_cents <= 0:
        return "amount_must_be_positive"
    return REFUSED_CARDS.get(card[-4:])


# --- how it misbehaves ----------------------------------------------------------------------


class Fault(StrEnum):
    NONE = "none"
    BUSY = "503"
    RESET = "reset"
    SLOW = "slow"
    HANGS_UP = "charged, hung up"
    SILENT = "charged, never answered"


# Of a hundred calls.
LIKELIHOOD = {
    Fault.NONE: 76,
    Fault.BUSY: 9,
    Fault.RESET: 5,
    Fault.SLOW: 5,
    Fault.HANGS_UP: 3,
    Fault.SILENT: 2,
}
# A bank that fails for longer is an outage, and that is another rehearsal.
MOST_FAULTS_PER_ORDER = 2


def fault_of(seed: int, order_id: int, call: int) -> Fault:
    """What goes wrong with the n-th call for an order, the same in every run with this seed."""
    if call > MOST_FAULTS_PER_ORDER:
        return Fault.NONE
    draw = random.Random(f"{seed}:{order_id}:{call}")
    return draw.choices(list(LIKELIHOOD), list(LIKELIHOOD.values()))[0]


@dataclass(frozen=True)
class Pace:
    """Seconds that things take."""

    usual: tuple[float, float] = (0.05, 0.25)
    slow: float = 1.0
    silent: float = 30.0


# --- its books ------------------------------------------------------------------------------


@dataclass
class Call:
    """One request, from its arrival until it was answered or the caller hung up."""

    number: int
    key: str
    order_id: int
    began: float
    at_once: int
    fault: Fault = Fault.NONE
    status: int | None = None
    ended: float | None = None
    connection: socket.socket | None = field(default=None, repr=False)

    def page(self) -> dict[str, Any]:
        kept = ("number", "key", "order_id", "began", "ended", "at_once", "fault", "status")
        return {name: getattr(self, name) for name in kept}


@dataclass(frozen=True)
class Charge:
    id: str
    key: str
    order_id: int
    amount_cents: int


class Books:
    """Everything the bank knows. Threads share it; each method is one step."""

    def __init__(self, limit: int, *, honours_keys: bool = True) -> None:
        self.limit = limit
        self.honours_keys = honours_keys
        self.calls: list[Call] = []
        self.charges: list[Charge] = []
        self.peak = 0
        self._charge_of_key: dict[str, Charge] = {}
        self._active: list[Call] = []
        self._calls_of_order: dict[int, int] = {}
        self._lock = threading.Lock()

    def open(self, key: str, order_id: int, connection: socket.socket | None = None) -> Call:
        """Writes the call down. It is one too many when ``at_once`` exceeds the limit."""
        with self._lock:
            if len(self._active) >= self.limit:
                self._forget_callers_who_hung_up()
            call = Call(
                number=len(self.calls) + 1,
                key=key,
                order_id=order_id,
                began=time.time(),
                at_once=len(self._active) + 1,
                connection=connection,
            )
            self.calls.append(call)
            self._active.append(call)
            self.peak = max(self.peak, call.at_once)
            return call

    def close(self, call: Call, status: int | None = None) -> None:
        """Called before the answer is sent: who receives it may call again at once."""
        with self._lock:
            if call.ended is None:
                call.ended, call.status = time.time(), status
                self._active.remove(call)

    def turn_of(self, order_id: int) -> int:
        """1 for the first call that was let in for this order."""
        with self._lock:
            turn = self._calls_of_order[order_id] = self._calls_of_order.get(order_id, 0) + 1
            return turn

    def charge(self, key: str, order_id: int, amount_cents: int) -> tuple[Charge, bool]:
        """The charge of this key, and whether it is new."""
        with self._lock:
            known = self._charge_of_key.get(key)
            if known is not None and self.honours_keys:
                return known, False
            charge = Charge(f"ch_{len(self.charges) + 1:06}", key, order_id, amount_cents)
            self.charges.append(charge)
            self._charge_of_key[key] = charge
            return charge, True

    def page(self) -> dict[str, Any]:
        with self._lock:
            return {
                "limit": self.limit,
                "peak": self.peak,
                "charges": [asdict(charge) for charge in self.charges],
                "violations": [call.page() for call in self.calls if call.at_once > self.limit],
                "calls": [call.page() for call in self.calls],
            }

    def _forget_callers_who_hung_up(self) -> None:
        """They freed their place before our thread noticed."""
        for call in list(self._active):
            if call.connection is not None and has_hung_up(call.connection):
                call.ended = time.time()
                self._active.remove(call)


def has_hung_up(connection: socket.socket, wait_s: float = 0.0) -> bool:
    """Whether the caller closed the connection, by now or within ``wait_s``."""
    try:
        readable, _, _ = select.select([connection], [], [], wait_s)
        return bool(readable) and connection.recv(1, socket.MSG_PEEK) == b""
    except (OSError, ValueError):
        return True


# --- its counter ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    key: str
    order_id: int
    amount_cents: int
    card: str

    @classmethod
    def read(cls, key: str | None, body: bytes) -> Request:
        """Raises ValueError with what is wrong."""
        if not key:
            raise ValueError("Idempotency-Key is missing")
        try:
            sent = json.loads(body)
            return cls(key, int(sent["order_id"]), int(sent["amount_cents"]), str(sent["card"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a charge: {error!r}") from error


class Counter(BaseHTTPRequestHandler):
    """One connection, one request."""

    server: Bank
    timeout = 10.0  # seconds for sending the request

    def do_GET(self) -> None:
        if self.path == "/books":
            self.answer(200, self.server.books.page())
        else:
            self.answer(404, {"reason": "not_found"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            request = Request.read(self.headers.get("Idempotency-Key"), body)
        except ValueError as error:
            self.answer(400, {"reason": str(error)})
            return
        books = self.server.books
        call = books.open(request.key, request.order_id, self.connection)
        try:
            if call.at_once > books.limit:
                self.end(call, 429, {"reason": "too_many_calls_at_once"})
            else:
                self.serve(call, request)
        finally:
            books.close(call)

    def serve(self, call: Call, request: Request) -> None:
        books, pace = self.server.books, self.server.pace
        turn = books.turn_of(request.order_id)
        call.fault = fault_of(self.server.seed, request.order_id, turn)
        if call.fault is Fault.RESET:
            reset(self.connection)
            books.close(call)
            self.hang_up()
            return
        if call.fault is Fault.BUSY:
            self.end(call, 503, {"reason": "try_again"})
            return
        if has_hung_up(self.connection, self.server.time_of(call, turn)):
            return
        reason = refusal(request.amount_cents, request.card)
        if reason is not None:
            self.end(call, 402, {"reason": reason})
            return
        charge, is_new = books.charge(request.key, request.order_id, request.amount_cents)
        if call.fault is Fault.HANGS_UP:
            books.close(call)
            self.hang_up()
        elif call.fault is Fault.SILENT:
            has_hung_up(self.connection, pace.silent)
        else:
            self.end(call, 201 if is_new else 200, asdict(charge))

    def end(self, call: Call, status: int, page: dict[str, Any]) -> None:
        self.server.books.close(call, status)
        self.answer(status, page)

    def answer(self, status: int, page: dict[str, Any]) -> None:
        body = json.dumps(page).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def hang_up(self) -> None:
        self.close_connection = True
        self.connection.close()

    def log_message(self, format: str, *args: Any) -> None:
        """The books are the log."""


def reset(connection: socket.socket) -> None:
    """With zero linger the close is a RST instead of an ordinary end."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class Bank(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, port: int, books: Books, *, seed: int, pace: Pace | None = None) -> None:
        super().__init__((LOOPBACK, port), Counter)
        self.books = books
        self.seed = seed
        self.pace = pace or Pace()

    def time_of(self, call: Call, turn: int) -> float:
        """Seconds until this call is decided."""
        if call.fault is Fault.SLOW:
            return self.pace.slow
        return random.Random(f"{self.seed}:{call.order_id}:{turn}:pace").uniform(*self.pace.usual)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Callers who hang up in the middle of an answer are everyday life."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m devtools.bank", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--limit", type=int, required=True, help="calls at once")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--forget-keys", action="store_true", help="charge for every call")
    given = parser.parse_args(argv)
    books = Books(given.limit, honours_keys=not given.forget_keys)
    with Bank(given.port, books, seed=given.seed) as bank:
        say(f"bank: listening on {LOOPBACK}:{given.port}")
        bank.serve_forever()


if __name__ == "__main__":
    main()
