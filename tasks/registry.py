"""Which tasks there are in this process.

A worker imports the task modules when it starts. A web server or the relay has no such moment,
so whoever asks for a task by name asks here.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from difflib import get_close_matches
from functools import cache
from typing import Any

from celery import current_app

SUGGESTED_MAX = 3


def task_of(name: str) -> Any | None:
    """The registered task of that name, LedgerTask or not."""
    found = current_app.tasks.get(name)
    if found is not None:
        return found
    import_task_modules()
    return current_app.tasks.get(name)


def ledger_tasks() -> dict[str, Any]:
    """Every registered LedgerTask, by name and in the order of their names."""
    import_task_modules()
    return {
        name: task
        for name, task in sorted(current_app.tasks.items())
        if getattr(task, "is_ledger_task", False)
    }


def queues_of_tasks() -> set[str]:
    """Those that the LedgerTasks of this code name, or have by default."""
    return {task.queue or task.app.conf.task_default_queue for task in ledger_tasks().values()}


def plain_tasks() -> list[str]:
    """Names of the registered tasks that are no LedgerTasks, without Celery's own."""
    import_task_modules()
    return sorted(
        name
        for name, task in current_app.tasks.items()
        if not getattr(task, "is_ledger_task", False) and not name.startswith("celery.")
    )


def suggestion(name: str, names: Iterable[str]) -> str:
    """The end of a sentence about a name that nobody knows."""
    meant = did_you_mean(name, names)
    return f"; {meant}" if meant else "."


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Empty when no name is near."""
    known = list(names)
    near = get_close_matches(name, known, n=1) or ending_alike(name, known)[:SUGGESTED_MAX]
    return f"did you mean {' or '.join(map(repr, near))}?" if near else ""


def ending_alike(name: str, names: Iterable[str]) -> list[str]:
    """Who writes ``capture`` for ``orders.tasks.capture`` is far from it by letters."""
    return sorted(known for known in names if known.rpartition(".")[2] == name)


def import_task_modules() -> None:
    """Celery's own autodiscovery and ``imports``, once.

    Celery runs Django's system checks on the way, and ours ask for the tasks again.
    """
    if _is_importing.get():
        return
    token = _is_importing.set(True)
    try:
        import_once()
    finally:
        _is_importing.reset(token)


@cache
def import_once() -> None:
    current_app.loader.import_default_modules()


_is_importing: ContextVar[bool] = ContextVar("tasks_is_importing", default=False)
