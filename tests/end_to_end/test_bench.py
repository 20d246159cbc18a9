"""``./dev bench`` once through, far too short to say anything about speed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from devtools.bench.alone import ALONE
from devtools.bench.dispatch import CONTENTS
from devtools.bench.measures import COMPARED
from devtools.child import ROOT

pytestmark = pytest.mark.timeout(300)


def test_the_bench_measures_both_systems_and_writes_what_it_shows(tmp_path: Path):
    shown, written = bench(tmp_path, "--jobs", "60", *only(COMPARED))
    assert "CPU s per 1,000 jobs" in shown
    medians = written["medians"]
    assert {line["measure"] for line in medians} == set(COMPARED)
    assert all(line["ratio"] > 0 for line in medians if line["figure"] == "jobs_per_s")


SOON = ["http", "idle", "written", "async"]
LATER = sorted(set(ALONE) - set(SOON))


@pytest.mark.parametrize("names", [SOON, LATER], ids=["soon", "later"])
def test_what_only_celeriac_promises_is_measured_against_its_goals(
    tmp_path: Path, names: list[str]
):
    sizes = ("--jobs", "60", "--rows", "500", "--memory-jobs", "60")
    shown, written = bench(tmp_path, *sizes, *only(names))
    medians = written["medians"]
    assert {line["measure"] for line in medians} == set(names)
    assert all(line["plain"] is None for line in medians)
    assert all(line["is_met"] is not None for line in medians if line["goal"])
    assert "goal" in shown


def only(names: Iterable[str]) -> list[str]:
    return [word for name in names for word in ("--only", name)]


def test_the_cost_of_a_dispatch_is_measured_beside_much_else_in_the_table(tmp_path: Path):
    shown, written = bench(tmp_path, "--only", "dispatch", "--rows", "2000")
    assert "2,000 finished, 200 waiting of one tenant" in shown
    assert len(written["medians"]) == len(CONTENTS)
    assert all(row["ms"] > 0 for row in written["medians"])


def bench(tmp_path: Path, *arguments: str) -> tuple[str, dict[str, Any]]:
    """What one round shows and writes."""
    written = tmp_path / "bench.json"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "devtools", "bench", *arguments),
            *("--rounds", "1", "--json", str(written)),
        ],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads(written.read_text())
