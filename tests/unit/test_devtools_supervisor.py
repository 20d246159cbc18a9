"""Whatever ends the supervisor, its children end too, in order and within their deadlines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools.child import ROOT, Child, ChildFailed, Program
from devtools.interrupts import StopRequested, acknowledged
from devtools.supervisor import Supervisor

# Writes when it starts and when SIGTERM comes; sleeps otherwise.
OBEDIENT = """
import pathlib, signal, sys, time
log = pathlib.Path(sys.argv[1])
def note(text):
    with log.open("a") as file:
        file.write(f"{sys.argv[2]} {text}\\n")
def stop(number, frame):
    note("stopped")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
time.sleep(60)
"""
DEAF = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print("grandchild", grandchild.pid, flush=True)
time.sleep(60)
"""
# A supervisor in a process of its own: what it does with signals can then be seen from outside.
SUPERVISED = """
import sys, time
from devtools.child import Program
from devtools.supervisor import Supervisor
log, code, behaviour = sys.argv[1:]
with Supervisor() as supervisor:
    for role in ("postgres", "worker", "web"):
        argv = [sys.executable, "-c", code, log, role]
        child = supervisor.start(Program(role, argv, role=role, stop_within_s=30))
        child.wait_for_line("ready|grandchild", within_s=10)
        print(child.pid, flush=True)
    print("started", flush=True)
    if behaviour == "raise":
        raise RuntimeError("on purpose")
    time.sleep(60)
"""


def program(name: str, code: str, *arguments: object, stop_within_s: float = 10) -> Program:
    argv = [sys.executable, "-c", code, *map(str, arguments)]
    return Program(name, argv, role=name, stop_within_s=stop_within_s)


def is_alive(pid: int) -> bool:
    """A zombie that nobody has reaped yet is dead."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def all_die(pids: list[int], *, within_s: float = 5) -> bool:
    deadline = time.monotonic() + within_s
    while any(is_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(is_alive(pid) for pid in pids)


class Outside:
    """A running SUPERVISED process and the pids of its children."""

    def __init__(self, log: Path, code: str, behaviour: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SUPERVISED, str(log), code, behaviour],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        lines = iter(self.process.stdout.readline, "started\n")
        self.pids = [int(line) for line in lines]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.touch()
    return path


@pytest.fixture
def supervised(log: Path) -> Iterator[Outside]:
    outside = Outside(log, OBEDIENT, "sleep")
    yield outside
    outside.process.kill()
    outside.process.wait(5)


def test_children_stop_in_the_order_of_their_roles(log: Path) -> None:
    with Supervisor() as supervisor:
        for name in ("postgres", "redis", "flower", "worker", "relay", "web"):
            child = supervisor.start(program(name, OBEDIENT, log, name))
            child.wait_for_line("ready", within_s=10)
    assert log.read_text().split("\n")[:-1] == [
        f"{name} stopped" for name in ("web", "relay", "worker", "flower", "redis", "postgres")
    ]


def test_sigterm_stops_every_child_in_order(supervised: Outside, log: Path) -> None:
    supervised.process.terminate()
    supervised.process.wait(30)
    assert log.read_text() == "web stopped\nworker stopped\npostgres stopped\n"
    assert all_die(supervised.pids)


def test_ctrl_c_stops_every_child_in_order(supervised: Outside, log: Path) -> None:
    supervised.process.send_signal(signal.SIGINT)
    supervised.process.wait(30)
    assert log.read_text() == "web stopped\nworker stopped\npostgres stopped\n"


def test_ctrl_c_is_acknowledged_in_one_line(supervised: Outside) -> None:
    supervised.process.send_signal(signal.SIGINT)
    output, _ = supervised.process.communicate(timeout=10)
    assert output == "Stopping ... Ctrl-C again kills.\n"


def test_ctrl_c_is_acknowledged_before_anything_is_waited_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(StopRequested), acknowledged(), acknowledged():
        raise StopRequested(signal.SIGINT)
    assert capsys.readouterr().out == "Stopping ... Ctrl-C again kills.\n"


def test_an_exception_stops_every_child(log: Path) -> None:
    outside = Outside(log, OBEDIENT, "raise")
    assert outside.process.wait(10) == 1
    assert log.read_text().count("stopped") == 3
    assert all_die(outside.pids)


def test_children_die_with_a_supervisor_that_is_killed(supervised: Outside) -> None:
    supervised.process.kill()
    assert all_die(supervised.pids)


def test_a_second_signal_kills_children_that_do_not_stop(log: Path) -> None:
    outside = Outside(log, DEAF, "sleep")
    outside.process.terminate()
    time.sleep(0.3)
    assert is_alive(outside.pids[0])
    outside.process.terminate()
    outside.process.wait(10)
    assert all_die(outside.pids)


def test_a_deaf_child_is_killed_at_its_deadline_with_what_it_started() -> None:
    child = Child(program("deaf", DEAF, stop_within_s=0.2))
    child.start()
    grandchild = int(child.wait_for_line("grandchild", within_s=10).split()[1])
    assert child.stop() == -signal.SIGKILL
    assert all_die([child.pid, grandchild])


def test_a_child_that_exits_by_itself_is_reported_with_code_and_last_lines() -> None:
    with Supervisor() as supervisor:
        supervisor.start(program("worker", "print('no such queue'); raise SystemExit(3)"))
        with pytest.raises(ChildFailed, match=r"worker exited with code 3\n    no such queue"):
            supervisor.wait_until(lambda: False, "never", within_s=10)


def test_a_child_that_was_stopped_has_not_failed(log: Path) -> None:
    with Supervisor() as supervisor:
        child = supervisor.start(program("web", OBEDIENT, log, "web"))
        child.wait_for_line("ready", within_s=10)
        child.stop()
        assert supervisor.failed() == []


def test_a_restarted_child_is_another_process(log: Path) -> None:
    with Supervisor() as supervisor:
        child = supervisor.start(program("web", OBEDIENT, log, "web"))
        child.wait_for_line("ready", within_s=10)
        first = child.pid
        supervisor.restart("web")
        child.wait_for_line("ready", within_s=10)
        assert child.pid != first
        assert not is_alive(first)


def test_a_wait_without_success_ends_at_its_deadline() -> None:
    with Supervisor() as supervisor, pytest.raises(TimeoutError, match="the moon"):
        supervisor.wait_until(lambda: False, "the moon", within_s=0.1)


def test_a_signal_leaves_the_block_as_one_exception() -> None:
    def wait_for_it() -> None:
        with Supervisor():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)

    with pytest.raises(StopRequested) as stop:
        wait_for_it()
    assert stop.value.exit_code == 143
