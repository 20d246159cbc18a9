"""Celery's pool of processes, cured of two bugs around the death of a child, and of a slow end.

Its pipe closes a moment before the kernel calls the child dead. Celery looks once, finds it
alive, and looks again only after 5 s. And when the broker is lost in that time, the worker ends
with "file descriptor is None": it watches its children anew, and this one is not watched.

A stopping pool looks for the last results child by child, and sleeps for half a second wherever
there is none yet: time that the grace period has not got. Here it waits for the result itself.
"""

from __future__ import annotations

from typing import Any

from celery.concurrency import asynpool
from celery.concurrency.prefork import TaskPool
from celery.worker.request import Request as CeleryRequest

# Seconds after which a child is dead whose pipe has closed.
DEAD_AFTER_S = 0.1
# Seconds for which a stopping pool waits at one child before it turns to the next.
LAST_RESULT_WITHIN_S = 0.05


class Request(CeleryRequest):
    """Set as ``LedgerTask.Request``. When its process is lost, the result backend hears which."""

    def on_accepted(self, pid: Any, time_accepted: Any) -> None:
        super().on_accepted(pid, time_accepted)
        if self.request_dict.get("batch"):
            self._context.worker_pid = pid  # type: ignore[attr-defined]


class ResultHandler(asynpool.ResultHandler):
    def _flush_outqueue(
        self, fd: int, remove: Any, process_index: dict[int, Any], on_state_change: Any
    ) -> Any:
        if is_silent(process_index.get(fd)):
            return None
        return super()._flush_outqueue(fd, remove, process_index, on_state_change)  # type: ignore[misc]


def is_silent(child: Any) -> bool:
    """It lives and has nothing to say. What is closed or unknown is Celery's business."""
    try:
        return child is not None and not child.outq._reader.poll(LAST_RESULT_WITHIN_S)
    except (OSError, EOFError):
        return False


class Pool(asynpool.AsynPool):
    ResultHandler = ResultHandler

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
