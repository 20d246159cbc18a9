"""The pool in a process of its own: told to stop, and as the documentation shows it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_process_with_work_that_nothing_can_interrupt_ends_within_its_deadline() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.pool.stubborn_process", "1.0"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            lines = iter(line for line in process.stdout if not line.startswith("20"))
            assert next(lines) == "ready\n"
            process.send_signal(signal.SIGTERM)
            begun = time.monotonic()
            assert process.wait(10) == 3
            assert 0.4 < time.monotonic() - begun < 2.0
            assert list(lines) == ["waits blocks swallows\n"]
        finally:
            process.kill()


def test_the_example_of_the_documentation_prints_what_the_documentation_says() -> None:
    text = (ROOT / "docs" / "pool.md").read_text()
    program, printed = re.findall(r"```(?:python|text)\n(# deliver.*?|deliver.*?)```", text, re.S)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout == printed
