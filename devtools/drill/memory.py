"""Ends processes that take too much memory: the kernel does, and where it may not, a watchdog."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from devtools.bench.cpu import children_of
from devtools.child import Child

GROUPS = Path("/sys/fs/cgroup/memory")
LOOK_EVERY_S = 0.05


@contextmanager
def limited_memory(workers: Sequence[Child], limit_bytes: int) -> Iterator[str]:
    """Each worker with its children has so much; yields who sees to it."""
    with ExitStack() as exits:
        try:
            for worker in workers:
                exits.enter_context(memory_group(worker, limit_bytes))
            who = "the kernel kills, each worker is in a memory cgroup of its own"
        except OSError as refusal:
            exits.enter_context(watchdog(workers, limit_bytes))
            who = f"a watchdog kills in place of the kernel: no memory cgroup here ({refusal})"
        yield who


@contextmanager
def memory_group(worker: Child, limit_bytes: int) -> Iterator[None]:
    """As a container of this size would be."""
    group = GROUPS / f"celeriac-drill-{worker.pid}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(limit_bytes))
        for pid in (worker.pid, *children_of(worker.pid)):
            (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for left in (group / "cgroup.procs").read_text().split():
            with suppress(OSError):
                (GROUPS / "cgroup.procs").write_text(left)
        group.rmdir()


@contextmanager
def watchdog(workers: Sequence[Child], limit_bytes: int) -> Iterator[None]:
    """SIGKILL for a child of a pool that alone takes half of the limit."""
    stopping = threading.Event()

    def watch() -> None:
        while not stopping.wait(LOOK_EVERY_S):
            for worker in workers:
                for pid in children_of(worker.pid):
                    if resident_bytes(pid) > limit_bytes / 2:
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=watch, name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def resident_bytes(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
