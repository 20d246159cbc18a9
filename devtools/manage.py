"""``./dev manage``: manage.py in the environment of the running ``./dev up``."""

from __future__ import annotations

import os
import sys

from devtools import running
from devtools.child import ChildFailed
from devtools.console import say
from devtools.foreground import run_in_foreground
from devtools.given_servers import VARIABLES
from devtools.stack import child_environment

USAGE = """Usage: ./dev manage COMMAND [arguments]

Runs `manage.py COMMAND` on the servers of the running `./dev up`; DATABASE_URL and BROKER_URL of
the caller come first. `./dev manage help` lists the commands."""


def main(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        say(USAGE)
        return 0
    return run_in_foreground([sys.executable, "manage.py", *argv], environment())


def environment() -> dict[str, str]:
    given = {name: os.environ[name] for name in VARIABLES if os.environ.get(name)}
    if running.is_up():
        return {**running.environment(), **given}
    if "DATABASE_URL" in given:
        return child_environment()
    raise ChildFailed(
        "./dev up", "is not running; start it in another terminal, or set DATABASE_URL", ""
    )
