"""The bank to rehearse with as a process of its own, while somebody needs it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from devtools.child import Program
from devtools.ports import LOOPBACK, PortTaken, start_on_free_port
from devtools.supervisor import Supervisor

OPEN_WITHIN_S = 20.0


@contextmanager
def open_bank(limit: int, *, seed: int = 1, forgets_keys: bool = False) -> Iterator[str]:
    """Its address. It starts before everything that calls it, and ends after."""
    options = ["--limit", str(limit), "--seed", str(seed)]
    if forgets_keys:
        options.append("--forget-keys")
    with Supervisor() as supervisor:

        def start(port: int) -> None:
            argv = [sys.executable, "-m", "devtools.bank", "--port", str(port), *options]
            child = supervisor.start(Program(name=f"bank-{port}", role="bank", argv=argv))
            try:
                child.wait_for_line("listening", within_s=OPEN_WITHIN_S)
            except Exception as failure:
                if "already in use" not in child.tail():
                    raise
                supervisor.kill(child.name)
                raise PortTaken(str(port)) from failure

        yield f"http://{LOOPBACK}:{start_on_free_port(start)}"
