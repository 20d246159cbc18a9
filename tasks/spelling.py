"""Whether a queue or a task that somebody names is known here, and which one was meant.

A name that nobody knows is no error everywhere: undeclared queues work, and another release may
have the task. To pause or cancel it does nothing, though, and looks as if it had.
"""

from __future__ import annotations

from tasks.registry import ledger_tasks, queues_of_tasks, suggestion
from tasks.sql import fetch
from tasks.states import Pausable
from tasks.wiring import topology


def doubt(kind: Pausable, name: str) -> str | None:
    """What is odd about the name, in a sentence; None: it is known. Any tenant is."""
    if kind == Pausable.TENANT:
        return None
    names = known_queues() if kind == Pausable.QUEUE else known_tasks()
    return None if name in names else f"No {kind} {name!r} is known here{suggestion(name, names)}"


def known_queues() -> set[str]:
    """Declared, of a task, or served by a worker that has beaten lately."""
    return {*topology().queues, *queues_of_tasks(), *of_workers("queues")}


def known_tasks() -> set[str]:
    return {*ledger_tasks(), *of_workers("known_tasks")}


def of_workers(column: str) -> set[str]:
    """``column`` is written in this module."""
    rows = fetch(
        f"SELECT DISTINCT jsonb_array_elements_text({column}) FROM tasks_worker",  # noqa: S608
        [],
    )
    return {name for (name,) in rows}
