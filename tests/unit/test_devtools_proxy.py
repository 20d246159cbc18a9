"""The faulty proxy does what its modes say."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from devtools.proxy import FaultyProxy


@pytest.fixture
def echo_port() -> Iterator[int]:
    """A server that answers with what it gets."""
    server = socket.create_server(("127.0.0.1", 0))

    def answer(client: socket.socket) -> None:
        with client:
            try:
                while data := client.recv(1024):
                    client.sendall(data)
            except OSError:
                return

    def accept() -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield server.getsockname()[1]
    server.close()


@pytest.fixture
def proxy(echo_port: int) -> Iterator[FaultyProxy]:
    with FaultyProxy("127.0.0.1", echo_port) as proxy:
        yield proxy


def connect(proxy: FaultyProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=2)


def ask(connection: socket.socket, text: bytes = b"ping", *, within_s: float = 2.0) -> bytes:
    connection.settimeout(within_s)
    connection.sendall(text)
    return connection.recv(1024)


def test_bytes_pass_in_both_directions(proxy: FaultyProxy) -> None:
    with connect(proxy) as connection:
        assert ask(connection) == b"ping"


def test_a_black_hole_accepts_and_is_mute_until_it_passes_on(proxy: FaultyProxy) -> None:
    proxy.black_hole()
    with connect(proxy) as connection:
        with pytest.raises(TimeoutError):
            ask(connection, within_s=0.2)
        proxy.pass_on()
        connection.settimeout(2)
        assert connection.recv(1024) == b"ping"


def test_a_black_hole_swallows_existing_connections_too(proxy: FaultyProxy) -> None:
    with connect(proxy) as connection:
        ask(connection)
        proxy.black_hole()
        with pytest.raises(TimeoutError):
            ask(connection, within_s=0.2)


def test_refusing_closes_the_port_and_passing_on_opens_the_same_one(proxy: FaultyProxy) -> None:
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    proxy.pass_on()
    with connect(proxy) as connection:
        assert ask(connection) == b"ping"


def test_a_reset_ends_existing_connections_only(proxy: FaultyProxy) -> None:
    with connect(proxy) as old:
        ask(old)
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            ask(old)
    with connect(proxy) as new:
        assert ask(new) == b"ping"


def test_latency_delays_both_directions(proxy: FaultyProxy) -> None:
    proxy.pass_on(latency_s=0.1)
    with connect(proxy) as connection:
        begun = time.monotonic()
        ask(connection)
    assert time.monotonic() - begun >= 0.2
