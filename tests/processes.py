"""Real processes for tests: a worker, a relay, a web server, against the test's own database.

Each is a context manager that returns when the process is ready and, at the end of the block,
stops it the way a deploy does: SIGTERM to the main process, SIGKILL at the deadline.

    with worker("payments", name="w1") as w, relay():
        ...
        w.send(signal.SIGKILL)
        assert "job_claimed" in w.log
"""

from __future__ import annotations

import os
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from django.conf import settings

from devtools.child import ROOT, Child, Program
from devtools.ports import LOOPBACK, free_port

READY_WITHIN_S = 30.0
STOP_WITHIN_S = 20.0


class Process:
    """A child that keeps everything it wrote."""

    def __init__(
        self, name: str, argv: Sequence[str], env: Mapping[str, str], cwd: Path = ROOT
    ) -> None:
        self.lines: list[str] = []
        self.child = Child(
            Program(name=name, argv=argv, env=env, cwd=cwd, stop_within_s=STOP_WITHIN_S),
            echo=lambda _, line: self.lines.append(line),
        )

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def log(self) -> str:
        """All it wrote so far, on both streams."""
        return "\n".join(self.lines)

    @property
    def is_running(self) -> bool:
        return self.child.is_running

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative when a signal ended it."""
        return self.child.exit_code

    def send(self, number: signal.Signals) -> None:
        """To the main process alone."""
        self.child.signal(number)

    def stop(self) -> int | None:
        """SIGTERM, then SIGKILL for it and its children after ``STOP_WITHIN_S``."""
        return self.child.stop()

    def kill(self) -> int | None:
        return self.child.kill()

    def wait(self, *, within_s: float = STOP_WITHIN_S) -> int:
        """Its exit code, once it ended by itself."""
        wait_until(lambda: not self.is_running, within_s=within_s, what=f"{self.child.name} ends")
        code = self.exit_code
        assert code is not None
        return code

    def wait_for(self, pattern: str, *, within_s: float = READY_WITHIN_S) -> str:
        """The first line that matches; fails with the log when the process ends before."""
        return self.child.wait_for_line(pattern, within_s=within_s)


class Web(Process):
    def __init__(self, name: str, argv: Sequence[str], env: Mapping[str, str], url: str) -> None:
        super().__init__(name, argv, env)
        self.url = url


@contextmanager
def worker(
    queue: str = "default",
    *options: str,
    name: str = "worker",
    env: Mapping[str, str] | None = None,
    ready: bool = True,
) -> Iterator[Process]:
    """``celery -A project worker -Q queue -n name@test options...``

    ``ready=False`` returns at once, for a worker that is not meant to get there.
    """
    argv = [
        *(sys.executable, "-m", "celery", "-A", "project", "worker"),
        # Asking the neighbours for their revoked tasks takes a second, and nobody revokes there.
        *("-Q", queue, "-n", f"{name}@test", "--without-mingle", *options),
    ]
    with running(Process(name, argv, environment(env))) as process:
        if ready:
            process.wait_for(rf"{name}@test ready")
        yield process


@contextmanager
def relay(
    *options: str,
    name: str = "relay",
    env: Mapping[str, str] | None = None,
    ready_line: str = "relay_started",
) -> Iterator[Process]:
    """``manage.py relay``"""
    argv = [sys.executable, "manage.py", "relay", *options]
    with running(Process(name, argv, environment(env))) as process:
        process.wait_for(ready_line)
        yield process


@contextmanager
def web(*options: str, env: Mapping[str, str] | None = None) -> Iterator[Web]:
    """Gunicorn on a free port; ``.url`` is where it answers."""
    bind = f"{LOOPBACK}:{free_port()}"
    argv = [
        *(sys.executable, "-m", "gunicorn", "-c", "config/gunicorn.py"),
        *("-b", bind, *options, "project.wsgi:application"),
    ]
    process = Web("web", argv, environment(env), f"http://{bind}")
    with running(process):
        wait_until(lambda: answers(process), within_s=READY_WITHIN_S, what="web answers")
        yield process


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Ours, with the test database in place of the configured one."""
    return {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "DATABASE_URL": database_url(),
        **(extra or {}),
    }


def database_url(*, port: int | None = None) -> str:
    """Of the database this test uses: pytest-django has put its name into the settings.

    ``port``: of a proxy on this machine, in place of the server's own address.
    """
    database: dict[str, Any] = settings.DATABASES["default"]
    user, password = quote(database["USER"], safe=""), quote(database["PASSWORD"], safe="")
    host, name = quote(database["HOST"], safe=""), quote(str(database["NAME"]), safe="")
    address = f"{LOOPBACK}:{port}" if port else f"{host}:{database['PORT'] or 5432}"
    return f"postgres://{user}:{password}@{address}/{name}"


@contextmanager
def running[P: Process](process: P) -> Iterator[P]:
    """The log is part of the failure when the block fails."""
    process.child.start()
    try:
        yield process
    except BaseException as error:
        error.add_note(f"--- {process.child.name} wrote ---\n{process.log}")
        raise
    finally:
        process.stop()


def answers(process: Web) -> bool:
    process.child.raise_if_ended()
    try:
        urllib.request.urlopen(process.url, timeout=1).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def wait_until[T](
    claim: Callable[[], T | None],
    *,
    within_s: float = 10.0,
    what: str = "",
    every_s: float = 0.05,
) -> T:
    """The first true answer of ``claim``; fails when there is none in time."""
    ends_at = time.monotonic() + within_s
    while True:
        answer = claim()
        if answer:
            return answer
        if time.monotonic() > ends_at:
            raise AssertionError(f"not within {within_s:g} s: {what or claim.__name__}")
        time.sleep(every_s)
