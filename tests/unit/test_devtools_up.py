"""``./dev up`` sees what changes, also in an app that is younger than itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools import up
from devtools.child import ROOT


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
