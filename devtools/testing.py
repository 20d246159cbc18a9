"""``./dev test``: pytest against a real PostgreSQL and a real Redis."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from devtools.foreground import run_in_foreground
from devtools.given_servers import refuse_silent_servers
from devtools.servers import Postgres, Redis
from devtools.supervisor import Supervisor

# Most tests wait for processes they started, so more of them run than there are processors.
PROCESSES_PER_CPU = 2.5
MOST_PROCESSES = 8
DRILLS = "tests/drills"
OK, NONE_FOUND = 0, 5  # exit codes of pytest
# With these, one process is what the caller wants: he looks at the terminal.
ONE_PROCESS = ("--pdb", "--trace", "-s", "--capture=no", "--collect-only", "--co")


def main(argv: list[str]) -> int:
    refuse_silent_servers(os.environ)
    with (
        tempfile.TemporaryDirectory(
            prefix="celeriac-test-", ignore_cleanup_errors=True
        ) as directory,
        Supervisor() as supervisor,
    ):
        env = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
        if not env.get("DATABASE_URL"):
            postgres = Postgres(Path(directory) / "postgres", durable=False)
            supervisor.add(postgres)
            env["DATABASE_URL"] = postgres.url
        if not env.get("BROKER_URL"):
            redis = Redis(Path(directory) / "redis")
            supervisor.add(redis)
            env["BROKER_URL"] = redis.url
        later = Path(directory) / "alone"

        def play(options: list[str]) -> int:
            command = [sys.executable, "-m", "pytest", *options, *left_out(argv), *argv]
            return run_in_foreground(command, env)

        code = play(first_round(argv, later))
        if later.exists() and code in (OK, NONE_FOUND):
            return play(ALONE)
        return code


# Tests that promise a time come last, with the machine for themselves.
ALONE = ["-n", "0", "-m", "alone"]


def first_round(argv: Sequence[str], later: Path) -> list[str]:
    """Options of pytest. ``later`` is made when tests were left for a round of their own."""
    options = process_arguments(argv)
    if "-m" in argv or options[1:2] == ["0"] or not options:
        return options
    return [*options, "-p", "devtools.pytest_alone", f"--alone-later={later}"]


def left_out(argv: Sequence[str]) -> list[str]:
    """The drills take minutes: they run when they are named."""
    return [] if any(argument.startswith(DRILLS) for argument in argv) else [f"--ignore={DRILLS}"]


def process_arguments(argv: Sequence[str]) -> list[str]:
    """How many processes pytest gets, or one where several would be in the way."""
    if any(argument.startswith(("-n", "--numprocesses", "-pno:xdist")) for argument in argv):
        return []
    if any(argument in ONE_PROCESS or "::" in argument for argument in argv):
        return ["-n", "0"]
    count = int(len(os.sched_getaffinity(0)) * PROCESSES_PER_CPU)
    # Stealing: a process that drew the long tests gives some away.
    return ["-n", str(min(count, MOST_PROCESSES)), "--dist", "worksteal"]
