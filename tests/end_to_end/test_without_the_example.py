"""The project works without its example, once docs/your-project.md has been followed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from devtools.child import ROOT

# What a clone does not have, and what is large.
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", ".var", ".uv", "__pycache__", ".*_cache", "frontend", "staticfiles"
)
NOT_TYPES = ("lint", "format", "imports", "migrations", "django", "topology", "modules")


@pytest.mark.timeout(300)
def test_without_the_example_all_checks_pass_and_no_test_misses_it(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    shutil.copytree(ROOT, clone, ignore=LEFT_OUT)
    delete_what_the_guide_names(clone)
    edit(clone / "project/settings.py", r'    "orders",\n', "")
    assert edit(clone / "pyproject.toml", r', "orders(\.\*)?"', "") == 4
    edit(clone / "docker-compose.yml", r"  BANK_URL: .*\n", "")
    topology = clone / "config/topology.py"
    edit(topology, r'Downstream\("bank"', 'Downstream("mailer"')
    edit(topology, r'"payments", ', '"mail", ')

    run(clone, "-m", "devtools", "topology", "--write")
    run(clone, "-m", "devtools", "check", *NOT_TYPES)
    assert "demo" not in run(clone, "-m", "devtools", "help")
    collected = run(clone, "-m", "pytest", "--collect-only", "-q", "-n0", "tests")
    assert "error" not in collected.splitlines()[-1]


def delete_what_the_guide_names(clone: Path) -> None:
    guide = (ROOT / "docs" / "your-project.md").read_text()
    [names] = re.findall(r"\$ git rm -r (.*)", guide)
    for name in names.split():
        path = clone / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def edit(path: Path, pattern: str, new: str) -> int:
    text, count = re.subn(pattern, new, path.read_text())
    assert count, f"{pattern} is not in {path}"
    path.write_text(text)
    return count


def run(clone: Path, *arguments: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(clone), "DJANGO_SETTINGS_MODULE": "tests.settings"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=clone, env=env, capture_output=True, text=True,
        timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
