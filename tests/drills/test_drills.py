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

WITHIN_S = 240
# How many jobs. They last for some seconds of traffic, in which each fault comes a few times.
PLAYED = {
    "sigkill-worker": 120,
    "stop-cont": 120,
    "sigterm-drain": 120,
    "broker-restart": 120,
    "duplicate-delivery": 80,
    "relay-killed": 120,
    "cancel": 160,
    "batch-poison": 200,
}
# Each takes its time, or is like one above: CI leaves them to those who name them.
PLAYED_LONG = {
    "sigkill-child": 150,
    "oom-child": 150,
    "poison": 100,
    "cutover": 200,
    "broker-mute": 120,
    "connection-drop": 120,
    "redis-lost-message": 120,
    "database-restart": 100,
    "clock-jump": 120,
    "ordering": 150,
    "outage": 160,
    "batch-sigterm": 400,
    "batch-sigkill": 400,
}
ROLLING = 200
# They measure shares of time and the slowest of a hundred: few jobs show nothing.
NOT_SMALL = {"limit", "fairness"}

pytestmark = pytest.mark.timeout(WITHIN_S + 30)


@pytest.mark.parametrize("name", PLAYED)
def test_a_drill_ends_as_expected(name: str, tmp_path: Path) -> None:
    ends_as_expected(name, PLAYED[name], tmp_path / "report.json")


@pytest.mark.long
@pytest.mark.parametrize("name", PLAYED_LONG)
def test_a_long_drill_ends_as_expected(name: str, tmp_path: Path) -> None:
    ends_as_expected(name, PLAYED_LONG[name], tmp_path / "report.json")


@pytest.mark.long
def test_the_report_of_a_rolling_deploy_says_how_long_each_step_took(tmp_path: Path) -> None:
    told = ends_as_expected("rolling-deploy", ROLLING, tmp_path / "report.json")
    assert [step["step"] for step in told["steps"]] == [
        "migrate",
        "rollout_check",
        "web server replaced",
        "relay replaced",
        "workers, batch 1: 2 started",
        "workers, batch 1: 2 stopped",
        "workers, batch 2: 2 started",
        "workers, batch 2: 2 stopped",
        "jobs of the release before end on a worker of it",
    ]
    assert all(step["seconds"] > 0 for step in told["steps"])
    promises = " ".join(promise["what"] for promise in told["promises"])
    for what in ("calls at once", "by itself", "twice", "removed or changed", "rollout_check"):
        assert what in promises


def test_each_drill_is_a_test_unless_it_needs_many_jobs() -> None:
    assert PLAYED.keys() | PLAYED_LONG.keys() | NOT_SMALL | {"rolling-deploy"} == DRILLS.keys()


def test_without_a_name_there_is_a_list() -> None:
    code, output, _ = play()
    assert code == 0
    for name, drill in DRILLS.items():
        assert name in output
        assert drill.breaks in output


def ends_as_expected(name: str, jobs: int, report: Path) -> dict[str, Any]:
    code, output, told = play(name, "--jobs", str(jobs), to=report)
    assert code == 0, output
    figures = told["figures"]
    assert figures["accepted"] == figures["jobs"] == jobs, output
    assert (figures["lost"], figures["not ended"], figures["overlaps"]) == (0, 0, 0)
    return told


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
