"""One child process: started in its own session, read line by line, stopped within a deadline."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from devtools.interrupts import uninterrupted

ROOT = Path(__file__).resolve().parent.parent
KEPT_LINES = 400
PR_SET_PDEATHSIG = 1
KILL_DEADLINE_S = 10.0

Echo = Callable[[str, str], None]
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


@dataclass(frozen=True)
class Program:
    name: str
    argv: Sequence[str]
    env: Mapping[str, str] | None = None
    cwd: Path = ROOT
    role: str = ""
    stop_signal: signal.Signals = signal.SIGTERM
    stop_within_s: float = 10.0
    # What the kernel sends it when we are killed and cannot stop it ourselves.
    orphan_signal: signal.Signals = signal.SIGKILL
    confine: Callable[[], None] | None = field(default=None, repr=False)


class ChildFailed(Exception):
    """A child ended, or did not get ready. Says which, how, and what it wrote last."""

    def __init__(self, name: str, what: str, tail: str) -> None:
        super().__init__(f"{name} {what}\n{tail}".rstrip())
        self.name = name


class Child:
    """Start it from the thread that lives longest: the kernel ties ``orphan_signal`` to it."""

    def __init__(self, program: Program, echo: Echo | None = None) -> None:
        self.program = program
        self.echo = echo
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._written = threading.Condition()
        self._asked_to_stop = False

    @property
    def name(self) -> str:
        return self.program.name

    @property
    def role(self) -> str:
        return self.program.role

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ChildFailed(self.name, "was never started", "")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    @property
    def has_failed(self) -> bool:
        """It ended though nobody asked it to."""
        return self.exit_code is not None and not self._asked_to_stop

    def start(self) -> None:
        self._asked_to_stop = False
        self._lines.clear()
        with uninterrupted():
            self._process = subprocess.Popen(
                self.program.argv,
                env=self.program.env,
                cwd=self.program.cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
                # It only makes system calls: no lock of another thread can be held in it.
                preexec_fn=_before_exec(self.program),  # noqa: PLW1509
            )
        self._reader = threading.Thread(
            target=self._read, args=(self._process.stdout,), name=f"{self.name} log", daemon=True
        )
        self._reader.start()

    def stop(self) -> int | None:
        """Signals the main process alone, so that it can drain its own children. Idempotent."""
        self._asked_to_stop = True
        if self._process is None:
            return None
        if self.is_running:
            self.signal(self.program.stop_signal)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(self.program.stop_within_s)
        return self.kill()

    def kill(self) -> int | None:
        """SIGKILL for it and whatever it left behind in its process group."""
        self._asked_to_stop = True
        if self._process is None:
            return None
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.wait(KILL_DEADLINE_S)

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def tail(self, lines: int = 20) -> str:
        if self._reader is not None and not self.is_running:
            self._reader.join(1.0)
        with self._written:
            return "\n".join(f"    {line}" for line in list(self._lines)[-lines:])

    def wait_for_line(self, pattern: str, *, within_s: float) -> str:
        """The first line written since the start that matches, among those still kept."""
        deadline = time.monotonic() + within_s
        with self._written:
            while True:
                for line in self._lines:
                    if re.search(pattern, line):
                        return line
                self.raise_if_ended()
                left = deadline - time.monotonic()
                if left <= 0:
                    raise self.failure(f"wrote no line like {pattern!r} within {within_s:g} s")
                self._written.wait(min(left, 0.2))

    def raise_if_ended(self) -> None:
        if self.exit_code is not None:
            raise self.failure(describe_exit(self.exit_code))

    def failure(self, what: str) -> ChildFailed:
        return ChildFailed(self.name, what, self.tail())

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for raw in stream:
                line = raw.rstrip("\n")
                with self._written:
                    self._lines.append(line)
                    self._written.notify_all()
                if self.echo is not None:
                    self.echo(self.name, line)


def describe_exit(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"exited with code {code}"


def die_with_parent(orphan_signal: signal.Signals, parent: int) -> None:
    if _libc is None:
        return
    _libc.prctl(PR_SET_PDEATHSIG, orphan_signal)
    if os.getppid() != parent:  # it died between the fork and the line above
        os._exit(1)


def _before_exec(program: Program) -> Callable[[], None]:
    parent = os.getpid()

    def prepare() -> None:
        if program.confine is not None:
            program.confine()
        # After confine: a change of credentials clears it.
        die_with_parent(program.orphan_signal, parent)

    return prepare
