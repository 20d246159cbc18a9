"""A module that serves on a port, as a process of its own, while somebody needs it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from devtools.child import Program
from devtools.ports import LOOPBACK, PortTaken, start_on_free_port
from devtools.supervisor import Supervisor

READY_WITHIN_S = 20.0


@contextmanager
def serving(role: str, module: str, *options: str) -> Iterator[str]:
    """Its address. It starts before everything that calls it, and ends after.

    The module takes ``--port`` and says "listening" when it does.
    """
    with Supervisor() as supervisor:

        def start(port: int) -> None:
            argv = [sys.executable, "-m", module, "--port", str(port), *options]
            child = supervisor.start(Program(name=f"{role}-{port}", role=role, argv=argv))
            try:
                child.wait_for_line("listening", within_s=READY_WITHIN_S)
            except Exception as failure:
                if "already in use" not in child.tail():
                    raise
                supervisor.kill(child.name)
                raise PortTaken(str(port)) from failure

        yield f"http://{LOOPBACK}:{start_on_free_port(start)}"
