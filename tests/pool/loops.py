"""Tests as coroutines, each on an event loop of its own and within a deadline."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

from tasks.pool import Token

# Far beyond what any of them needs: reaching it means that somebody was never woken.
WITHIN_S = 30.0


def on_a_loop[**P](test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), WITHIN_S))

    return run


async def turns(count: int = 5) -> None:
    """Let everybody who is ready go on."""
    for _ in range(count):
        await asyncio.sleep(0)


class Gate:
    """Work that has begun and waits to be let through."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.opened = asyncio.Event()

    def work(self, name: str) -> Callable[[Token], Coroutine[Any, Any, str]]:
        async def work(token: Token) -> str:
            self.begun.append(name)
            await self.opened.wait()
            return name

        return work

    async def stubborn(self, token: Token) -> str:
        """Cannot be interrupted. Open the gate, or the loop waits for it for ever."""
        while not self.opened.is_set():
            try:
                await self.opened.wait()
            except asyncio.CancelledError:
                continue
        return "too late"


async def quick(token: Token) -> str:
    return "done"


async def cooperative(token: Token) -> None:
    await token.wait()
    token.check()
