"""Whether a queue or a task that somebody names is known here, and which one was meant.

A name that nobody knows is no error everywhere: undeclared queues work, and another release may
have the task. To pause or cancel it does nothing, though, and looks as if it had.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from tasks.registry import ledger_tasks
from tasks.sql import fetch
from tasks.states import Pausable
from tasks.wiring import topology

SUGGESTED_MAX = 3


def doubt(kind: Pausable, name: str) -> str | None:
    """What is odd about the name, in a sentence; None: it is known. Any tenant is."""
    if kind == Pausable.TENANT:
        return None
    names = known_queues() if kind == Pausable.QUEUE else known_tasks()
    return None if name in names else f"No {kind} {name!r} is known here{suggestion(name, names)}"


def suggestion(name: str, names: Iterable[str]) -> str:
    """The end of the sentence."""
    near = get_close_matches(name, names, n=1) or ending_alike(name, names)[:SUGGESTED_MAX]
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else "."


def ending_alike(name: str, names: Iterable[str]) -> list[str]:
    """Who writes ``capture`` for ``orders.tasks.capture`` is far from it by letters."""
    return sorted(known for known in names if known.rpartition(".")[2] == name)


def known_queues() -> set[str]:
    """Declared, of a task, or served by a worker that has beaten lately."""
    of_tasks = {task.queue or task.app.conf.task_default_queue for task in ledger_tasks().values()}
    return {*topology().queues, *of_tasks, *of_workers("queues")}


def known_tasks() -> set[str]:
    return {*ledger_tasks(), *of_workers("known_tasks")}


def of_workers(column: str) -> set[str]:
    """``column`` is written in this module."""
    rows = fetch(
        f"SELECT DISTINCT jsonb_array_elements_text({column}) FROM tasks_worker",  # noqa: S608
        [],
    )
    return {name for (name,) in rows}
