"""``./dev drill``: from the command line to the exit code."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from devtools.child import ChildFailed
from devtools.drill.catalogue import DRILLS
from devtools.drill.drill import Drill
from devtools.drill.evidence import differences
from devtools.drill.report import Outcome, as_json, show, summary_table
from devtools.drill.scene import Scene, Step
from devtools.stack import release

JOBS = 2000


def main(argv: Sequence[str]) -> int:
    """0: everything as expected. 1: it is not, and the rows are shown."""
    given = parse(argv)
    console = Console(highlight=False)
    if given.name is None:
        show_list(console)
        return 0
    outcomes = []
    for drill in DRILLS.values() if given.name == "all" else [DRILLS[given.name]]:
        console.print(f"[bold]{drill.name}[/]: {escape(drill.breaks)}.")
        outcomes.append(play(drill, given))
        show(console, outcomes[-1])
        if given.json:
            given.json.write_text(json.dumps(as_json(outcomes, about(given)), indent=1) + "\n")
    if len(outcomes) > 1:
        console.print(summary_table(outcomes))
    return 0 if all(outcome.passed for outcome in outcomes) else 1


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./dev drill",
        description="Breaks a real stack under traffic and compares the ledger with the books of"
        " an independent witness. Without a name: what there is.",
    )
    parser.add_argument("name", nargs="?", choices=[*DRILLS, "all"], metavar="NAME")
    parser.add_argument("--jobs", type=int, default=JOBS, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of bodies and moments")
    parser.add_argument("--lease", type=float, metavar="SECONDS", help="in place of the drill's")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report, too")
    return parser.parse_args(argv)


def show_list(console: Console) -> None:
    width = max(map(len, DRILLS))
    for name, drill in DRILLS.items():
        console.print(f"  {name:<{width}}  {drill.breaks}", markup=False, soft_wrap=True)
    console.print(
        f"\n./dev drill NAME plays one, ./dev drill all plays all, with {JOBS:,} jobs each."
    )


def play(drill: Drill, given: argparse.Namespace) -> Outcome:
    began = time.monotonic()
    notes: list[str] = []
    steps: list[Step] = []
    try:
        with Scene(drill, jobs=given.jobs, seed=given.seed, lease_s=given.lease) as scene:
            notes, steps = scene.notes, scene.steps
            drill.rehearse(scene)
            scene.wait_until_all_ended()
            seen = scene.evidence()
    except (ChildFailed, TimeoutError, OSError, subprocess.CalledProcessError) as failure:
        return Outcome(drill, time.monotonic() - began, {}, (), (), notes, steps, str(failure))
    return Outcome(
        drill,
        time.monotonic() - began,
        seen.figures(),
        seen.promises,
        differences(seen),
        notes,
        steps,
    )


def about(given: argparse.Namespace) -> dict[str, Any]:
    return {
        "jobs": given.jobs,
        "seed": given.seed,
        "release": release(),
        "processors": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        **{name: version(name) for name in ("celery", "django", "psycopg", "redis")},
    }
