"""``./dev COMMAND``: finds the command's module and runs its ``main(argv)``."""

from __future__ import annotations

import argparse
import difflib
import importlib
import importlib.util
import sys
from dataclasses import dataclass

from devtools.binaries import MissingBinary
from devtools.child import ChildFailed
from devtools.console import complain, say
from devtools.given_servers import ServerSilent
from devtools.interrupts import StopRequested
from devtools.ports import PortTaken


@dataclass(frozen=True)
class Command:
    module: str
    does: str

    @property
    def exists(self) -> bool:
        return importlib.util.find_spec(self.module) is not None


COMMANDS = {
    "demo": Command("devtools.demo", "Shows what the template promises, on a throw-away stack"),
    "up": Command("devtools.up", "Runs the whole stack until Ctrl-C; reloads when code changes"),
    "worker": Command("devtools.worker", "Joins a running `./dev up` with a worker you can debug"),
    "manage": Command("devtools.manage", "Runs manage.py in the environment of `./dev up`"),
    "test": Command("devtools.testing", "Runs the tests; arguments go to pytest"),
    "check": Command("devtools.check", "Runs linters, types, import contracts and Django's checks"),
    "topology": Command(
        "devtools.topology", "Shows what follows from config/topology.py; writes the manifests"
    ),
    "drill": Command(
        "devtools.drill.command", "Breaks the stack under traffic and counts what is lost"
    ),
    "release": Command("devtools.release", "Keeps this release's schema and statements as a test"),
    "bench": Command("devtools.bench", "Measures against plain Celery on this machine"),
}


def main(argv: list[str]) -> int:
    available = {name: command for name, command in COMMANDS.items() if command.exists}
    parser = argparse.ArgumentParser(prog="./dev", add_help=False)
    parser.add_argument("command", nargs="?", default="help")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args(argv)
    if given.command in ("help", "-h", "--help"):
        say(help_text(available))
        return 0
    if given.command not in available:
        complain(unknown(given.command, list(available)))
        return 2
    return run(available[given.command], given.arguments)


def run(command: Command, arguments: list[str]) -> int:
    try:
        return int(importlib.import_module(command.module).main(arguments))
    except StopRequested as stop:
        return stop.exit_code
    except KeyboardInterrupt:
        return 130
    except ServerSilent as failure:
        complain(f"error: {failure}")
        return 2
    except (ChildFailed, MissingBinary, PortTaken, TimeoutError) as failure:
        complain(f"error: {failure}")
        return 1


def help_text(available: dict[str, Command]) -> str:
    rows = "\n".join(f"  {name:<8} {command.does}" for name, command in available.items())
    return (
        f"Usage: ./dev COMMAND [arguments]\n\n{rows}\n  {'help':<8} Shows this\n\n"
        "PostgreSQL and Redis are started for you unless DATABASE_URL and BROKER_URL are set.\n"
        "./dev COMMAND --help tells more about a command."
    )


def unknown(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean `./dev {close[0]}`?" if close else ""
    return f"There is no command {name!r}.{hint} There are: {', '.join([*names, 'help'])}."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
