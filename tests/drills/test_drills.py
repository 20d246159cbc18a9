"""The drills with small numbers: the same processes, the same faults, a few seconds of traffic."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from devtools.child import ROOT
from devtools.drill.catalogue import DRILLS

WITHIN_S = 150
# The others take longer than they add here; `./dev drill all` plays each.
PLAYED = {
    "sigkill-worker": 120,
    "sigkill-child": 150,
    "poison": 100,
    "sigterm-drain": 60,
    "broker-restart": 120,
    "duplicate-delivery": 80,
    "database-restart": 100,
    "relay-killed": 120,
}

pytestmark = pytest.mark.timeout(WITHIN_S + 30)


@pytest.mark.parametrize("name", PLAYED)
def test_a_drill_ends_as_expected(name: str, tmp_path: Path) -> None:
    code, output, told = play(name, "--jobs", str(PLAYED[name]), to=tmp_path / "report.json")
    assert code == 0, output
    figures = told["figures"]
    assert figures["accepted"] == figures["jobs"] == PLAYED[name], output
    assert (figures["lost"], figures["not ended"], figures["overlaps"]) == (0, 0, 0)


def test_without_a_name_there_is_a_list() -> None:
    code, output, _ = play()
    assert code == 0
    for name, drill in DRILLS.items():
        assert name in output
        assert drill.breaks in output


def play(*arguments: str, to: Path | None = None) -> tuple[int, str, dict[str, Any]]:
    """Exit code, what it printed, and its report."""
    done = subprocess.run(
        [sys.executable, "-m", "devtools", "drill", *arguments, *(["--json", to] if to else [])],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    told = json.loads(to.read_text())["drills"][0] if to and to.exists() else {}
    return done.returncode, done.stdout, told
