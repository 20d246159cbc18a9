"""What ``./dev up`` and ``./dev worker`` tell each other, in files only their owner can read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from devtools.child import ROOT, ChildFailed
from devtools.secrets_kept import write_private

STACK = ROOT / ".var" / "stack.json"
TERMINAL = ROOT / ".var" / "terminal.json"


@contextmanager
def announced(env: Mapping[str, str]) -> Iterator[None]:
    """While the stack runs, others may join it. Only what it adds to the environment is written."""
    added = {name: value for name, value in env.items() if os.environ.get(name) != value}
    with _written(STACK, {"env": added}):
        yield


@contextmanager
def queues_taken_over(queues: list[str]) -> Iterator[None]:
    """The stack's own workers leave these alone meanwhile: a breakpoint must not depend on luck."""
    with _written(TERMINAL, {"queues": queues}):
        yield


def taken_over() -> frozenset[str]:
    terminal = _read(TERMINAL)
    return frozenset(terminal["queues"]) if terminal else frozenset()


def is_up() -> bool:
    return _read(STACK) is not None


def environment() -> dict[str, str]:
    """The environment of the running stack's processes."""
    stack = _read(STACK)
    if stack is None:
        raise ChildFailed("./dev up", "is not running; start it in another terminal", "")
    return {**os.environ, **stack["env"]}


def refuse_second() -> None:
    stack = _read(STACK)
    if stack is not None:
        raise ChildFailed("./dev up", f"is already running, as process {stack['pid']}", "")


@contextmanager
def _written(path: Path, content: Mapping[str, object]) -> Iterator[None]:
    write_private(path, json.dumps({"pid": os.getpid(), **content}, indent=1))
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any] | None:
    """None when it is not there, or was left by a process that was killed."""
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        os.kill(content["pid"], 0)
    except (FileNotFoundError, ProcessLookupError, json.JSONDecodeError):
        return None
    return content
