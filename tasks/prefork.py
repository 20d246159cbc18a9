"""Celery's pool of processes, cured of two bugs around the death of a child.

Its pipe closes a moment before the kernel calls the child dead. Celery looks once, finds it
alive, and looks again only after 5 s. And when the broker is lost in that time, the worker ends
with "file descriptor is None": it watches its children anew, and this one is not watched.
"""

from __future__ import annotations

from typing import Any

from celery.concurrency import asynpool
from celery.concurrency.prefork import TaskPool

# Seconds after which a child is dead whose pipe has closed.
DEAD_AFTER_S = 0.1


class Pool(asynpool.AsynPool):
    def _event_process_exit(self, hub: Any, proc: Any) -> None:
        super()._event_process_exit(hub, proc)  # type: ignore[misc]
        hub.call_later(DEAD_AFTER_S, self.maintain_pool)

    def _track_child_process(self, proc: Any, hub: Any) -> None:
        if getattr(proc, "_sentinel_poll", True) is None:
            del proc._sentinel_poll  # else it is taken for a descriptor
        super()._track_child_process(proc, hub)  # type: ignore[misc]


def install() -> None:
    """Pools of processes that start from now on are cured ones."""
    TaskPool.Pool = Pool
