"""``./dev up``: the whole stack until Ctrl-C, reloaded when code changes."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import watchfiles

from config import topology
from devtools import running
from devtools.child import ROOT
from devtools.console import complain, echo, say
from devtools.open_bank import open_bank
from devtools.ports import is_free, port_number
from devtools.secrets_kept import kept_secret
from devtools.stack import Ports, Stack, one_worker_per_queue
from devtools.supervisor import failure_of

KEPT = ROOT / ".var"
TOPOLOGY_FILE = ROOT / "config" / "topology.py"
RELOADED_ROLES = ("relay", "worker", "web")
# A child that dies this soon after a reload died of the edit, and the next edit may cure it.
EDIT_TO_BLAME_S = 20.0
NAMED_FILES = 4
CREATE_ADMIN = """
from django.contrib.auth import get_user_model
import os
User = get_user_model()
if not User.objects.filter(username="admin").exists():
    User.objects.create_superuser("admin", "", os.environ["ADMIN_PASSWORD"])
"""


def main(argv: list[str]) -> int:
    given = _parse(argv)
    running.refuse_second()
    with example_bank() as bank:
        return _run(given, bank)


def _run(given: argparse.Namespace, bank: dict[str, str]) -> int:
    stack = Stack(
        workers=one_worker_per_queue(given.queues),
        flower=given.flower,
        environment={"SECRET_KEY": kept_secret(KEPT / "secret-key"), **_flower_login(), **bank},
        directory=KEPT,
        ports=Ports(
            web=given.port_web or _usual(8000),
            flower=given.port_flower or _usual(5555),
            postgres=given.port_postgres,
            redis=given.port_redis,
        ),
        echo=_echo_with_hints,
    )
    with stack, running.announced(stack.env):
        _print_addresses(stack, _create_admin(stack))
        try:
            return _stay(stack, reload=given.reload, follow_queues=given.queues is None)
        except KeyboardInterrupt:
            say("Stopping: running jobs end or are given back. Ctrl-C again kills.")
            return 0


@contextmanager
def example_bank() -> Iterator[dict[str, str]]:
    """The example calls a bank. One to rehearse with is opened unless there is an address."""
    if os.environ.get("BANK_URL") or not has_example():
        yield {}
        return
    limits = [known.max_concurrency for known in topology.TOPOLOGY.downstreams]
    with open_bank(max(filter(None, limits), default=20)) as address:
        yield {"BANK_URL": address}


def has_example() -> bool:
    return importlib.util.find_spec("orders") is not None


def _echo_with_hints(name: str, line: str) -> None:
    echo(name, line)
    if "bdb.BdbQuit" in line:
        complain(f"{name} met a breakpoint and has no terminal to ask in: ./dev worker --solo")


def _usual(port: int) -> int | None:
    """The port everybody expects, unless another stack has it."""
    return port if is_free(port) else None


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev up", description=__doc__)
    parser.add_argument("--no-reload", dest="reload", action="store_false")
    parser.add_argument("--no-flower", dest="flower", action="store_false")
    parser.add_argument(
        "--queues",
        type=lambda text: [name for name in text.split(",") if name],
        default=None,
        help="queues that get a worker, with commas; all declared ones unless given",
    )
    for server in ("web", "flower", "postgres", "redis"):
        parser.add_argument(
            f"--port-{server}", type=port_number, metavar="N", help="a free one unless given"
        )
    return parser.parse_args(argv)


def _flower_login() -> dict[str, str]:
    if "FLOWER_BASIC_AUTH" in os.environ:
        return {}
    return {"FLOWER_BASIC_AUTH": f"flower:{kept_secret(KEPT / 'flower-password')}"}


def _create_admin(stack: Stack) -> str:
    """The password that the superuser got when it was created; an existing one is left alone."""
    password = kept_secret(KEPT / "admin-password")
    stack.manage("shell", "-v", "0", "-c", CREATE_ADMIN, env={"ADMIN_PASSWORD": password})
    return password


def _print_addresses(stack: Stack, password: str) -> None:
    say("")
    say(f"  Admin     {stack.web_url}/admin/  admin / {password}")
    say(f"  API docs  {stack.web_url}/api/docs")
    if stack.flower:
        say(
            f"  Flower    {stack.flower_url}/  {stack.env['FLOWER_BASIC_AUTH'].replace(':', ' / ')}"
        )
    if "BANK_URL" in stack.env:
        say(f"  Bank      {stack.env['BANK_URL']}  of the example; its books are at /books")
    say("  Debugger  ./dev worker --solo")
    say("  manage.py ./dev manage shell, ./dev manage migrate, ...")
    say("  Ctrl-C stops everything.")
    say("")


def _stay(stack: Stack, *, reload: bool, follow_queues: bool = True) -> int:
    """Until a signal, or until a child dies that no edit can cure: then 1.

    ``follow_queues``: a queue that is declared meanwhile gets a worker.
    """
    reloaded_at = float("-inf")
    reported: set[str] = set()
    for changed in _changes() if reload else _ticks():
        if changed and _all_compile(changed):
            if TOPOLOGY_FILE in changed:
                _take_in_queues(stack, follow=follow_queues)
            _reload(stack, changed)
            reloaded_at = time.monotonic()
            reported.clear()
        _stand_aside(stack, running.taken_over())
        for service in stack.supervisor.failed():
            if service.name in reported:
                continue
            reported.add(service.name)
            if service.exit_code == 0 and service.role in RELOADED_ROLES:
                again = "change or ./dev up" if reload else "./dev up"
                complain(
                    f"{service.name} was stopped from outside; it starts again at the next {again}"
                )
                continue
            complain(str(failure_of(service)))
            if (
                service.role not in RELOADED_ROLES
                or time.monotonic() - reloaded_at > EDIT_TO_BLAME_S
            ):
                return 1
            complain(f"{service.name} starts again at the next change")
    return 1


def _take_in_queues(stack: Stack, *, follow: bool) -> None:
    """Workers for the queues that are declared now; the next look starts and stops them."""
    known = set(topology.TOPOLOGY.queues)
    try:
        importlib.reload(topology)
    except Exception as error:  # whatever somebody may write there; the workers will say it too
        complain(f"config/topology.py: {error}")
        return
    declared = set(topology.TOPOLOGY.queues)
    for queue in sorted(declared - known):
        say(
            f"{queue} is new and "
            + ("gets a worker" if follow else "not among --queues: no worker")
        )
    if not follow:
        return
    stack.workers = one_worker_per_queue()
    gone = {f"worker-{queue}" for queue in known - declared}
    for process in sorted(gone & set(stack.supervisor.names("worker"))):
        say(f"{process} ends: its queue is not declared any more")
        stack.supervisor.stop(process)


def _stand_aside(stack: Stack, taken: frozenset[str]) -> None:
    """Stops the workers whose queues a terminal has taken over; starts them when it has gone."""
    running_now = set(stack.supervisor.names("worker"))
    for worker in stack.workers:
        if worker.queue in taken and worker.process in running_now:
            say(f"{worker.process} leaves its queue to the worker in the terminal")
            stack.supervisor.stop(worker.process)
        elif worker.queue not in taken and worker.process not in running_now:
            stack.start_worker(worker)


def _changes(root: Path = ROOT) -> Iterator[frozenset[Path]]:
    """What changed, in batches; an empty set once a second."""
    watched, added = _directories(root), frozenset[Path]()
    while True:
        for batch in watchfiles.watch(
            *watched,
            watch_filter=watchfiles.PythonFilter(),
            yield_on_timeout=True,
            rust_timeout=1000,
            raise_interrupt=True,
        ):
            # A new directory is listed once it is watched: nothing written meanwhile is missed.
            new_files = {file for directory in added for file in directory.rglob("*.py")}
            yield frozenset(Path(path) for _, path in batch) | new_files
            former, watched = watched, _directories(root)
            added = watched - former
            if watched != former:
                break


def _directories(root: Path) -> frozenset[Path]:
    """Each by itself: watching the root would watch .venv and .var."""
    return frozenset(
        path for path in root.iterdir() if path.is_dir() and not path.name.startswith((".", "__"))
    )


def _ticks() -> Iterator[frozenset[Path]]:
    while True:
        time.sleep(1)
        yield frozenset()


def _all_compile(changed: Iterable[Path]) -> bool:
    """A half-typed file must not take the stack down."""
    for path in changed:
        if not path.exists():
            continue
        try:
            compile(path.read_text(), str(path), "exec")
        except (SyntaxError, ValueError) as error:
            complain(f"not reloaded: {error}")
            return False
    return True


def _reload(stack: Stack, changed: Iterable[Path]) -> None:
    supervisor = stack.supervisor
    names = [name for role in RELOADED_ROLES for name in supervisor.names(role)]
    say(f"reloading {', '.join(names)}: {_listed(changed)}")
    supervisor.restart(*names)


def _listed(changed: Iterable[Path]) -> str:
    """Named up to a number: a new app has many files, a checkout more."""
    names = sorted(str(path.relative_to(ROOT)) for path in changed)
    more = f" and {len(names) - NAMED_FILES} more" if len(names) > NAMED_FILES else ""
    return ", ".join(names[:NAMED_FILES]) + more + " changed"
