"""``./dev up`` sees what changes, also in an app that is younger than itself."""

from __future__ import annotations

import importlib
import signal
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import cast

import pytest

from config import topology
from devtools import up
from devtools.child import ROOT, Child, Program
from devtools.stack import Stack, Worker, one_worker_per_queue
from devtools.supervisor import Service, Supervisor
from tasks.topology import Queue, Topology


def until(changes: Iterator[frozenset[Path]], wanted: Path) -> frozenset[Path]:
    """The first batch with that file; a change comes within a few ticks or not at all."""
    for _ in range(10):
        batch = next(changes)
        if wanted in batch:
            return batch
    raise AssertionError(f"{wanted} was never seen")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for directory in ("orders", ".venv", "__pycache__"):
        (tmp_path / directory).mkdir()
    return tmp_path


def test_the_example_finds_a_bank_unless_it_is_told_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up, "has_example", lambda: True)
    monkeypatch.delenv("BANK_URL", raising=False)
    with up.example_bank() as env, urllib.request.urlopen(f"{env['BANK_URL']}/books") as books:
        assert books.status == 200
    monkeypatch.setenv("BANK_URL", "https://bank.example.com")
    with up.example_bank() as env:
        assert env == {}


def test_an_app_made_while_it_runs_is_watched_from_its_first_file(project: Path) -> None:
    changes = up._changes(project)
    assert next(changes) == frozenset()
    (project / "shop").mkdir()
    tasks = project / "shop" / "tasks.py"
    tasks.touch()
    until(changes, tasks)
    models = project / "shop" / "models.py"
    models.touch()
    assert until(changes, models) == {models}
    orders = project / "orders" / "tasks.py"
    orders.touch()
    assert until(changes, orders) == {orders}


def test_an_app_may_go_while_it_runs(project: Path) -> None:
    changes = up._changes(project)
    next(changes)
    (project / "orders").rmdir()
    (project / "shop").mkdir()
    tasks = project / "shop" / "tasks.py"
    tasks.touch()
    until(changes, tasks)


def test_environments_and_caches_are_not_watched(project: Path) -> None:
    assert up._directories(project) == {project / "orders"}


def test_a_reload_names_a_few_files_and_counts_the_rest() -> None:
    changed = [ROOT / "shop" / f"{letter}.py" for letter in "fedcba"]
    assert up._listed(changed) == "shop/a.py, shop/b.py, shop/c.py, shop/d.py and 2 more changed"
    assert up._listed(changed[:1]) == "shop/f.py changed"


def test_a_breakpoint_without_a_terminal_leads_to_the_worker_that_has_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    up._echo_with_hints("worker-bulk", "bdb.BdbQuit")
    assert "./dev worker --solo" in capsys.readouterr().out
    up._echo_with_hints("worker-bulk", "ValueError")
    assert "--solo" not in capsys.readouterr().out


# --- while it stays up --------------------------------------------------------------------

OBEDIENT = (
    "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0));"
    "print('ready', flush=True); time.sleep(60)"
)


class Workers:
    """The part of a stack that ``_stay`` sees, with a sleeping process for each worker."""

    def __init__(self, supervisor: Supervisor, queues: Iterable[str]) -> None:
        self.supervisor = supervisor
        self.workers = one_worker_per_queue(queues)

    def start_worker(self, worker: Worker) -> Child:
        argv = [sys.executable, "-c", OBEDIENT]
        child = self.supervisor.start(Program(worker.process, argv, role="worker"))
        child.wait_for_line("ready", within_s=10)
        return child


@pytest.fixture
def workers() -> Iterator[Workers]:
    with Supervisor() as supervisor:
        yield Workers(supervisor, ["a", "b"])


def stay(workers: Workers, batches: Iterator[frozenset[Path]], **options: bool) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(up, "_changes", lambda: batches)
        return up._stay(cast("Stack", workers), reload=True, **options)


def until_ended(child: Service) -> None:
    deadline = time.monotonic() + 10
    while child.exit_code is None and time.monotonic() < deadline:
        time.sleep(0.01)


def test_a_worker_that_somebody_stops_is_one_line_and_the_rest_goes_on(
    workers: Workers, capsys: pytest.CaptureFixture[str]
) -> None:
    running: list[bool] = []

    def batches() -> Iterator[frozenset[Path]]:
        yield frozenset()
        child = cast("Child", workers.supervisor["worker-a"])
        child.signal(signal.SIGTERM)
        until_ended(child)
        yield frozenset()
        yield frozenset()
        running.append(cast("Child", workers.supervisor["worker-b"]).is_running)

    stay(workers, batches())
    assert running == [True]
    assert capsys.readouterr().out.splitlines()[-1:] == [
        "worker-a was stopped from outside; it starts again at the next change or ./dev up"
    ]


def test_a_worker_that_is_killed_ends_the_stack(workers: Workers) -> None:
    def batches() -> Iterator[frozenset[Path]]:
        yield frozenset()
        child = cast("Child", workers.supervisor["worker-a"])
        child.signal(signal.SIGKILL)
        until_ended(child)
        yield frozenset()
        raise AssertionError("it went on")

    assert stay(workers, batches()) == 1


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """What config/topology.py declares from the next reload on."""
    monkeypatch.setattr(topology, "TOPOLOGY", Topology.of([Queue("a"), Queue("b")]))

    def declare(*queues: str) -> None:
        changed = Topology.of(map(Queue, queues))
        monkeypatch.setattr(
            importlib, "reload", lambda module: setattr(module, "TOPOLOGY", changed)
        )

    return declare


def test_a_new_queue_gets_a_worker_and_one_that_is_gone_loses_it(
    workers: Workers, declared: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    names: list[list[str]] = []

    def batches() -> Iterator[frozenset[Path]]:
        yield frozenset()
        declared("b", "fresh")
        yield frozenset({up.TOPOLOGY_FILE})
        names.append(workers.supervisor.names("worker"))

    stay(workers, batches())
    assert names == [["worker-b", "worker-fresh"]]
    said = capsys.readouterr().out
    assert "fresh is new and gets a worker" in said
    assert "worker-a ends: its queue is not declared any more" in said


def test_a_new_queue_beside_chosen_ones_is_said(
    workers: Workers, declared: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    def batches() -> Iterator[frozenset[Path]]:
        yield frozenset()
        declared("a", "b", "fresh")
        yield frozenset({up.TOPOLOGY_FILE})

    stay(workers, batches(), follow_queues=False)
    assert "fresh is new and not among --queues: no worker" in capsys.readouterr().out
    assert workers.supervisor.names("worker") == ["worker-a", "worker-b"]
