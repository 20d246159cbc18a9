"""Each process as the first one of a container, as the image starts it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from devtools.bench.cpu import children_of
from devtools.ports import LOOPBACK, free_port
from tasks.enqueue import enqueue
from tasks.models import Job
from tasks.states import State
from tasks.topology import STOP_OVERHEAD_S
from tests import surviving_tasks
from tests.broker import Corner, Trace, trace_table
from tests.processes import Process, environment, relay, running, wait_until

# A starved machine takes seconds to end an interpreter; the container waits for this long.
GRACE_S = 5 + STOP_OVERHEAD_S
KILLED_AFTER_S = "90"
UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
CELERY = (sys.executable, "-m", "celery", "-A", "project")
WORKER = (
    *(*CELERY, "worker", "-Q", "default"),
    *("-I", "tests.surviving_tasks", "-c", "1", "-n", "one@test"),
)

pytestmark = [pytest.mark.timeout(110), pytest.mark.django_db(transaction=True)]


def can_be_first() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0


only_where_it_can_be_first = pytest.mark.skipif(
    not can_be_first(), reason="no PID namespace can be made here"
)


@pytest.fixture
def corner() -> Iterator[Corner]:
    corner = Corner()
    yield corner
    corner.clear()


@pytest.fixture
def trace() -> Iterator[Trace]:
    with trace_table() as trace:
        yield trace


@contextmanager
def container(argv: Sequence[str], env: dict[str, str]) -> Iterator[Process]:
    """``argv`` as process one of a namespace of its own."""
    argv = ["timeout", "-s", "KILL", KILLED_AFTER_S, *UNSHARE, *argv]
    with running(Process("one", argv, environment(env))) as process:
        yield process


def process_one_of(container: Process) -> int:
    """timeout -> unshare -> the first process of the namespace."""
    [unshare] = children_of(container.pid)
    [first] = children_of(unshare)
    return first


@only_where_it_can_be_first
@pytest.mark.parametrize("seconds", [30, 3])
def test_as_process_one_a_worker_drains_on_term_and_ends_before_the_grace_does(
    seconds: int, corner: Corner, trace: Trace
) -> None:
    """What does not end in time is given back with its checkpoint; what does has ended."""
    env = {**corner.env, "DJANGO_SETTINGS_MODULE": "tests.short_drain"}
    with relay(env=corner.env), container(WORKER, env) as worker:
        worker.wait_for("one@test ready")
        job_id = enqueue(surviving_tasks.slow, {"note": "x", "seconds": seconds}).job_id
        wait_until(lambda: "x begins" in trace.notes, within_s=20, what="it begins")
        first = process_one_of(worker)
        os.kill(first, signal.SIGTERM)
        assert worker.wait(within_s=GRACE_S) == 0
        assert "Warm shutdown" in worker.log
    left = Job.objects.get(id=job_id)
    if seconds > GRACE_S:
        assert (left.state, left.attempts, left.crashes) == (State.QUEUED, 0, 0)
        assert left.checkpoint == {"note": "x"}
    else:
        assert (left.state, left.attempts, left.crashes) == (State.SUCCEEDED, 1, 0)


OTHERS: dict[str, tuple[Sequence[str], str]] = {
    "relay": ((sys.executable, "manage.py", "relay"), "relay_started"),
    "web": (
        (sys.executable, "-m", "gunicorn", "-c", "config/gunicorn.py", "project.wsgi:application"),
        "Booting worker",
    ),
    "flower": ((*CELERY, "flower", f"--address={LOOPBACK}"), "Visit me at"),
}


@only_where_it_can_be_first
@pytest.mark.parametrize("name", OTHERS)
def test_as_process_one_all_others_end_by_themselves_on_term(name: str, corner: Corner) -> None:
    argv, ready = OTHERS[name]
    port = free_port()
    argv = [*argv, f"--port={port}"] if name == "flower" else argv
    own = {"WEB_BIND": f"{LOOPBACK}:{port}", "FLOWER_BASIC_AUTH": "ops:secret"}
    with container(argv, {**corner.env, **own}) as process:
        process.wait_for(ready)
        os.kill(process_one_of(process), signal.SIGTERM)
        assert process.wait(within_s=GRACE_S) == 0
