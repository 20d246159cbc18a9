"""The one place where HTTP clients for task bodies are built: bounded, and without retries.

The task owns retries: they are counted, delayed and shown in the ledger, and each is a call that
the downstream's limit knows of.
"""

from __future__ import annotations

from weakref import WeakSet

import httpx

BUILT: WeakSet[httpx.Client] = WeakSet()


def client(timeout: httpx.Timeout) -> httpx.Client:
    built = httpx.Client(timeout=timeout)
    BUILT.add(built)
    return built
