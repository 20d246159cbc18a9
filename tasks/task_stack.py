"""Celery's stacks of the current task and request, per context instead of per thread.

Coroutines of one loop share its thread. With these, ``self.request`` and ``current_task`` are
those of the job whose coroutine asks.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from celery import _state
from celery.app import base, task, trace


class ContextStack:
    """The interface of ``celery.utils.threads.LocalStack``."""

    def __init__(self, name: str) -> None:
        self._items: ContextVar[tuple[Any, ...]] = ContextVar(name, default=())

    def push(self, item: Any) -> None:
        self._items.set((*self._items.get(), item))

    def pop(self) -> Any:
        items = self._items.get()
        self._items.set(items[:-1])
        return items[-1] if items else None

    @property
    def top(self) -> Any:
        items = self._items.get()
        return items[-1] if items else None

    @property
    def stack(self) -> list[Any]:
        return list(self._items.get())

    def __len__(self) -> int:
        return len(self._items.get())


# All that keep a name for it.
MODULES: tuple[Any, ...] = (_state, base, task, trace)
CURRENT_TASK = ContextStack("celery_current_task")


def install() -> None:
    """Before any tracer is built: they keep what they find."""
    for module in MODULES:
        module._task_stack = CURRENT_TASK
    state: Any = _state
    state.push_current_task = CURRENT_TASK.push
    state.pop_current_task = CURRENT_TASK.pop
