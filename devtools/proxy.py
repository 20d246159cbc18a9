"""A TCP proxy that misbehaves on demand: what a network does to PostgreSQL, Redis or an API."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Self

from devtools.ports import LOOPBACK, free_port

ACT_WITHIN_S = 5.0


class FaultyProxy:
    """Listens on ``port`` and passes on, until told otherwise. Call any method at any time."""

    def __init__(self, target_host: str, target_port: int) -> None:
        self.port = free_port()
        self._target = (target_host, target_port)
        self._latency_s = 0.0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        self.pass_on()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.refuse()
        self._do(_cancel_everything())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ACT_WITHIN_S)
        self._loop.close()

    def pass_on(self, *, latency_s: float = 0.0) -> None:
        """Back to normal; with ``latency_s``, every chunk in either direction is late by it."""
        self._latency_s = latency_s
        self._loop.call_soon_threadsafe(self._flowing.set)
        self._do(self._listen())

    def black_hole(self) -> None:
        """Accepts, old connections included, and says nothing: bytes wait until ``pass_on``."""
        self._loop.call_soon_threadsafe(self._flowing.clear)
        self._do(self._listen())

    def refuse(self) -> None:
        """The port is closed and nothing is left of the connections."""
        self._do(self._close_port())
        self.reset()

    def reset(self) -> None:
        """Ends the existing connections with a RST; new ones are treated as before."""
        self._do(self._reset())

    def _do(self, action: Coroutine[object, object, None]) -> None:
        asyncio.run_coroutine_threadsafe(action, self._loop).result(ACT_WITHIN_S)

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, LOOPBACK, self.port)

    async def _close_port(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _reset(self) -> None:
        for writer in self._open:
            _abort(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            await self._flowing.wait()
            there, back = await asyncio.open_connection(*self._target)
        except OSError:
            _abort(writer)
            self._open.discard(writer)
            return
        self._open.add(back)
        await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
        self._open -= {writer, back}

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while chunk := await source.read(65536):
                await asyncio.sleep(self._latency_s)
                await self._flowing.wait()
                sink.write(chunk)
                await sink.drain()
        sink.close()


def _abort(writer: asyncio.StreamWriter) -> None:
    """With zero linger the close is a RST; without, it would be an ordinary FIN."""
    connection = writer.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _cancel_everything() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
