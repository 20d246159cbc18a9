"""The worker as the first process of a container, as the image starts it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from devtools.bench.cpu import children_of
from tasks.enqueue import enqueue
from tasks.models import Job
from tasks.states import State
from tests import surviving_tasks
from tests.broker import Corner, Trace, trace_table
from tests.processes import Process, environment, relay, running, wait_until

GONE_WITHIN_S = 5 + 4
UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
WORKER = (
    *(sys.executable, "-m", "celery", "-A", "project", "worker", "-Q", "default"),
    *("-I", "tests.surviving_tasks", "-c", "1", "-n", "one@test"),
)

pytestmark = [pytest.mark.timeout(110), pytest.mark.django_db(transaction=True)]


def can_be_first() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0


@pytest.fixture
def corner() -> Iterator[Corner]:
    corner = Corner()
    yield corner
    corner.clear()


@pytest.fixture
def trace() -> Iterator[Trace]:
    with trace_table() as trace:
        yield trace


@pytest.mark.skipif(not can_be_first(), reason="no PID namespace can be made here")
def test_as_process_one_it_drains_on_term_and_ends_before_the_grace_does(
    corner: Corner, trace: Trace
) -> None:
    env = {**corner.env, "DJANGO_SETTINGS_MODULE": "tests.short_drain"}
    argv = ["timeout", "-s", "KILL", "90", *UNSHARE, *WORKER]
    with relay(env=corner.env), running(Process("one", argv, environment(env))) as container:
        container.wait_for("one@test ready")
        job_id = enqueue(surviving_tasks.slow, {"note": "x", "seconds": 30}).job_id
        wait_until(lambda: "x begins" in trace.notes, within_s=20, what="it begins")
        first = process_one_of(container)
        asked_at = time.monotonic()
        os.kill(first, signal.SIGTERM)
        assert container.wait(within_s=GONE_WITHIN_S) == 0
        assert time.monotonic() - asked_at < GONE_WITHIN_S
    given = Job.objects.get(id=job_id)
    assert (given.state, given.attempts, given.crashes) == (State.QUEUED, 0, 0)
    assert given.checkpoint == {"note": "x"}


def process_one_of(container: Process) -> int:
    """timeout -> unshare -> the first process of the namespace."""
    [unshare] = children_of(container.pid)
    [first] = children_of(unshare)
    return first
