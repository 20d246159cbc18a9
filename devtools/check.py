"""``./dev check``: what can be known without running the product, as one table."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from devtools.child import ROOT
from devtools.console import RED, paint, say

WITHIN_S = 600.0
GREEN = "32"
# Strictly, because others build on them; your own apps are typed as you like.
TYPED = ("tasks", "config")


@dataclass(frozen=True)
class Check:
    name: str
    argv: tuple[str, ...]
    covers: str = ""


@dataclass(frozen=True)
class Result:
    check: Check
    passed: bool
    output: str
    seconds: float


def main(argv: list[str]) -> int:
    known = checks()
    chosen = _parse(argv, [check.name for check in known])
    results = list(run([check for check in known if not chosen or check.name in chosen]))
    for result in results:
        if not result.passed:
            say(f"{paint(result.check.name, RED)}: {' '.join(result.check.argv[1:])}")
            say(result.output)
    for result in results:
        say(_row(result))
    return 0 if all(result.passed for result in results) else 1


def _parse(argv: list[str], names: list[str]) -> list[str]:
    parser = argparse.ArgumentParser(prog="./dev check", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"all unless given: {', '.join(names)}"
    )
    chosen: list[str] = parser.parse_args(argv).names
    unknown = sorted(set(chosen) - set(names))
    if unknown:
        parser.error(f"no such check: {', '.join(unknown)}; there are {', '.join(names)}")
    return chosen


def checks() -> list[Check]:
    python = sys.executable
    bin_directory = Path(python).parent
    return [
        Check("lint", (python, "-m", "ruff", "check", "--quiet")),
        Check("format", (python, "-m", "ruff", "format", "--check", "--quiet")),
        Check("types", (python, "-m", "mypy", "--strict", *TYPED), "strict: " + " ".join(TYPED)),
        Check("imports", (str(bin_directory / "lint-imports"),)),
        Check("migrations", (python, "manage.py", "makemigrations", "--check", "--dry-run")),
        Check("django", (python, "manage.py", "check")),
        Check("topology", (python, "-m", "devtools", "topology", "--check")),
        Check("modules", (python, "-m", "devtools.module_map", "--check"), "docs/modules.md"),
        Check("manifests", (python, "-m", "devtools.manifests"), "compose, Kubernetes, alerts"),
    ]


def run(chosen: list[Check]) -> Iterator[Result]:
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        yield from pool.map(_run_one, chosen)


def _run_one(check: Check) -> Result:
    begun = time.monotonic()
    try:
        done = subprocess.run(
            check.argv,
            cwd=ROOT,
            env={**os.environ, "DJANGO_SETTINGS_MODULE": "project.settings"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Result(check, False, f"not done within {WITHIN_S:g} s", WITHIN_S)
    return Result(check, done.returncode == 0, done.stdout, time.monotonic() - begun)


def _row(result: Result) -> str:
    verdict = paint("pass", GREEN) if result.passed else paint("FAIL", RED)
    return (
        f"{result.check.name:<12} {verdict} {result.seconds:6.1f} s  {result.check.covers}".rstrip()
    )
