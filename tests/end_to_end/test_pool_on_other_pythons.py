"""The contract suite of the pool once more, on the other supported Python: ``asyncio.Queue`` can
be closed from 3.13 on, and on 3.12 ours stands in for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OTHER = "3.12" if sys.version_info >= (3, 13) else "3.13"
# The suite takes seconds; a cold cache of uv and a busy machine take the rest.
WITHIN_S = 280


@pytest.mark.timeout(WITHIN_S + 20)
def test_the_pool_keeps_its_contract_on_the_other_python() -> None:
    uv = os.environ.get("UV") or shutil.which("uv")
    assert uv is not None
    env = {
        **os.environ,
        # An environment of its own, with little in it.
        "UV_PROJECT_ENVIRONMENT": f".var/venv-pool-{OTHER}",
        # pyenv obeys .python-version and would hide the other Python from uv.
        "PYENV_VERSION": OTHER,
    }
    for inherited in ("UV_PYTHON", "VIRTUAL_ENV", "PYTEST_ADDOPTS"):
        env.pop(inherited, None)
    found = subprocess.run(
        [uv, "python", "find", OTHER], env=env, capture_output=True, text=True, check=False
    )
    if found.returncode and not os.environ.get("CI"):
        pytest.skip(f"there is no Python {OTHER} here: {found.stderr.strip()}")
    suite = subprocess.run(
        [
            *(uv, "run", "--frozen", "--only-group", "pool", "--python", OTHER),
            *("python", "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            # Not the settings of this project, which ask for Django.
            *("-c", os.devnull, "--rootdir", str(ROOT), "tests/pool"),
        ],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert suite.returncode == 0, suite.stdout
    assert " passed" in suite.stdout
    assert "skipped" not in suite.stdout
