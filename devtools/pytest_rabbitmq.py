"""One RabbitMQ for a whole test run, started only when a test of it was selected.

The process that owns the run starts it in the background while other tests begin; they find its
address in a file.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from devtools.binaries import MissingBinary, rabbitmq_server
from devtools.child import ChildFailed
from devtools.ports import PortTaken
from devtools.servers import RabbitMQ

DIRECTORY = "CELERIAC_TEST_RABBITMQ"
READY_WITHIN_S = 90.0


class Background:
    """The server, in a thread that lives as long as it: the kernel ties the child to it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rabbitmq")

    def start(self) -> None:
        if not self._thread.is_alive():
            self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            with RabbitMQ(self.directory / "node") as server:
                _write(self.directory / "url", server.url)
                self._over.wait()
        except (ChildFailed, PortTaken) as exc:
            _write(self.directory / "error", str(exc))


_background: Background | None = None


def pytest_configure(config: pytest.Config) -> None:
    global _background  # noqa: PLW0603
    if "PYTEST_XDIST_WORKER" not in os.environ:
        directory = tempfile.mkdtemp(prefix="celeriac-rabbitmq-")
        os.environ[DIRECTORY] = directory
        _background = Background(Path(directory))


def pytest_collection_finish(session: pytest.Session) -> None:
    start_if_wanted(item.nodeid for item in session.items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: object, ids: Iterable[str]) -> None:
    start_if_wanted(ids)


def pytest_unconfigure(config: pytest.Config) -> None:
    if _background is not None:
        _background.stop()
        shutil.rmtree(_background.directory, ignore_errors=True)


def start_if_wanted(ids: Iterable[str]) -> None:
    if _background is not None and any("[rabbitmq" in name for name in ids) and _is_installed():
        _background.start()


def rabbitmq_url() -> str:
    """Of the server of this run, once it answers."""
    need_rabbitmq()
    directory = Path(os.environ[DIRECTORY])
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        if (directory / "url").exists():
            return (directory / "url").read_text()
        if (directory / "error").exists():
            pytest.fail((directory / "error").read_text())
        time.sleep(0.1)
    pytest.fail(f"RabbitMQ did not start within {READY_WITHIN_S:g} s")


def need_rabbitmq() -> None:
    """Where it is not installed, a test fails in CI and is skipped elsewhere."""
    if not _is_installed():
        if os.environ.get("CI"):
            pytest.fail("rabbitmq-server is not installed")
        pytest.skip("rabbitmq-server is not installed")


def _is_installed() -> bool:
    try:
        rabbitmq_server()
    except MissingBinary:
        return False
    return True


def _write(path: Path, text: str) -> None:
    """Whole or not at all, for readers that look at any moment."""
    unfinished = path.with_suffix(".part")
    unfinished.touch(mode=0o600)
    unfinished.write_text(text)
    unfinished.replace(path)
