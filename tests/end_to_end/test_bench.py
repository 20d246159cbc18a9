"""``./dev bench`` once through, far too short to say anything about speed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from devtools.bench.dispatch import CONTENTS
from devtools.bench.measures import MEASURES
from devtools.child import ROOT

pytestmark = pytest.mark.timeout(300)


def test_the_bench_measures_both_systems_and_writes_what_it_shows(tmp_path: Path):
    shown, written = bench(tmp_path, "--jobs", "60")
    assert "CPU s per 1,000 jobs" in shown
    medians = written["medians"]
    assert {line["measure"] for line in medians} == set(MEASURES)
    assert all(line["ratio"] > 0 for line in medians if line["figure"] == "jobs_per_s")


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
