"""Runs one program in the foreground of the terminal, so that it may ask and be interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

from devtools.child import ROOT, die_with_parent


def run_in_foreground(
    argv: Sequence[str], env: Mapping[str, str], *, ends_by_interrupt: bool = False
) -> int:
    """Its exit code. The terminal sends it Ctrl-C itself; a SIGTERM to us is passed on.

    With ``ends_by_interrupt``, Ctrl-C is how people end it, and 0 whatever it makes of that.
    """
    parent = os.getpid()
    interrupts: list[int] = []
    # A function, and before the start: a child would inherit SIG_IGN.
    former = {
        signal.SIGINT: signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    }
    try:
        with subprocess.Popen(
            argv,
            env=env,
            cwd=ROOT,
            preexec_fn=lambda: die_with_parent(signal.SIGKILL, parent),  # noqa: PLW1509
        ) as process:
            former[signal.SIGTERM] = signal.signal(
                signal.SIGTERM, lambda number, _: process.send_signal(number)
            )
            code = process.wait()
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
    if ends_by_interrupt and interrupts:
        return 0
    return code if code >= 0 else 128 - code
