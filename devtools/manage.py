"""``./dev manage``: manage.py in the environment of the running ``./dev up``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from devtools import running
from devtools.child import ChildFailed
from devtools.console import say
from devtools.foreground import run_in_foreground
from devtools.given_servers import VARIABLES
from devtools.stack import child_environment

USAGE = """Usage: ./dev manage COMMAND [arguments]

Runs `manage.py COMMAND` on the servers of the running `./dev up`; DATABASE_URL and BROKER_URL of
the caller come first. `./dev manage help` lists the commands. Those that need no database
(startapp, makemigrations, check, help, ...) need no `./dev up` either."""

# They read code or write it. Given a database they look whether the migrations in it are in order.
NEED_NO_SERVERS = frozenset(
    {"check", "diffsettings", "findstatic", "help", "makemessages", "compilemessages"}
    | {"makemigrations", "collectstatic", "startapp", "startproject", "version"}
)


def main(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        say(USAGE)
        return 0
    return run_in_foreground([sys.executable, "manage.py", *argv], environment(argv))


def environment(argv: Sequence[str] = ()) -> dict[str, str]:
    given = {name: os.environ[name] for name in VARIABLES if os.environ.get(name)}
    if running.is_up():
        return {**running.environment(), **given}
    if "DATABASE_URL" in given or needs_no_servers(argv):
        return child_environment()
    raise ChildFailed(
        "./dev up", "is not running; start it in another terminal, or set DATABASE_URL", ""
    )


def needs_no_servers(argv: Sequence[str]) -> bool:
    return bool(argv) and (argv[0] in NEED_NO_SERVERS or bool({"-h", "--help"} & set(argv)))
