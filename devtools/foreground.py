"""Runs one program in the foreground of the terminal, so that it may ask and be interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

from devtools.child import ROOT, die_with_parent


def run_in_foreground(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Its exit code. The terminal sends it Ctrl-C itself; a SIGTERM to us is passed on."""
    parent = os.getpid()
    with subprocess.Popen(
        argv,
        env=env,
        cwd=ROOT,
        preexec_fn=lambda: die_with_parent(signal.SIGKILL, parent),  # noqa: PLW1509
    ) as process:
        former = {
            signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
            signal.SIGTERM: signal.signal(
                signal.SIGTERM, lambda number, _: process.send_signal(number)
            ),
        }
        try:
            code = process.wait()
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)
    return code if code >= 0 else 128 - code
