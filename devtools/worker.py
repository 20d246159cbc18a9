"""``./dev worker``: a worker in this terminal that joins the running ``./dev up``."""

from __future__ import annotations

import argparse
import sys

from config.topology import TOPOLOGY
from devtools import running
from devtools.foreground import run_in_foreground


def main(argv: list[str]) -> int:
    given, rest = _parse(argv)
    env = {"PYTHONBREAKPOINT": "devtools.debugger.ask", **running.environment()}
    # Solo runs the task in the process that owns the terminal, so that breakpoint() can ask.
    pool = ["-P", "solo"] if given.solo else []
    with running.queues_taken_over(given.queues.split(",")):
        return run_in_foreground(
            [
                *(sys.executable, "-m", "celery", "-A", "project", "worker"),
                *("-Q", given.queues, "-n", "terminal@%h"),
                *pool,
                *rest,
            ],
            env,
            ends_by_interrupt=True,
        )


def _parse(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        prog="./dev worker",
        description="Joins a running `./dev up`, whose own workers leave it the queues meanwhile."
        " Further arguments go to `celery worker`.",
    )
    parser.add_argument("--solo", action="store_true", help="one job at a time, breakpoint() works")
    parser.add_argument(
        "-Q", "--queues", default=",".join(TOPOLOGY.queues), help="with commas; all unless given"
    )
    return parser.parse_known_args(argv)
