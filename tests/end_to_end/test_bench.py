"""``./dev bench`` once through, far too short to say anything about speed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from devtools.bench.measures import MEASURES
from devtools.child import ROOT

pytestmark = pytest.mark.timeout(300)


def test_the_bench_measures_both_systems_and_writes_what_it_shows(tmp_path: Path):
    written = tmp_path / "bench.json"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "devtools", "bench"),
            *("--jobs", "60", "--rounds", "1", "--json", str(written)),
        ],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "CPU s per 1,000 jobs" in done.stdout
    medians = json.loads(written.read_text())["medians"]
    assert {line["measure"] for line in medians} == set(MEASURES)
    assert all(line["ratio"] > 0 for line in medians if line["figure"] == "jobs_per_s")
