"""Revoking means cancelling: ``AsyncResult.revoke()``, ``celery control revoke`` and Flower.

Celery asks the workers that listen at this moment to remember an id; one that starts later runs
it. Here a job is cancelled in the ledger, with who and when. Plain tasks are revoked as usual.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from celery.app.control import Control
from django.db import connection
from kombu.utils.functional import maybe_list

from tasks import ledger
from tasks.adopt import job_id_of
from tasks.connections import reconnecting
from tasks.declaration import LIMIT
from tasks.registry import task_of
from tasks.states import State

ACTOR = "celery revoke"


class LedgerControl(Control):
    """Set as ``app.control_cls``; every way to revoke or to limit ends in ``broadcast``."""

    def broadcast(
        self, command: str, arguments: Mapping[str, Any] | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        arguments = dict(arguments or {})
        if command == "rate_limit":
            refuse_rate_limit(arguments.get("task_name"))
        if command == "revoke_by_stamped_headers":
            raise TypeError("the stamps of jobs are not on the broker: revoke their ids")
        if command not in ("revoke", "terminate"):
            return super().broadcast(command, arguments, *args, **kwargs)
        revoked = outside_event_loop(revoke, maybe_list(arguments.get("task_id")) or [])
        for_workers = revoked.no_jobs
        if command == "terminate" or arguments.get("terminate"):
            for_workers = for_workers + revoked.running
        if not for_workers:
            return revoked.reply(**kwargs)
        return super().broadcast(command, {**arguments, "task_id": for_workers}, *args, **kwargs)


@dataclass
class Revoked:
    """What became of the ids."""

    cancelled: list[str] = field(default_factory=list)
    running: list[str] = field(default_factory=list)  # asked to stop
    finished: list[str] = field(default_factory=list)
    no_jobs: list[str] = field(default_factory=list)

    def reply(
        self, *, reply: bool = False, callback: Callable[..., Any] | None = None, **_: Any
    ) -> Any:
        """In the form in which a worker would have answered."""
        if not reply:
            return None
        text = ", ".join(
            f"{what} {', '.join(ids)}"
            for what, ids in (
                ("cancelled", self.cancelled),
                ("asked to stop", self.running),
                ("already finished", self.finished),
            )
            if ids
        )
        answer = {"ledger": {"ok": text}}
        if callback is not None:
            callback(answer)
        return [answer]


def revoke(task_ids: Iterable[str]) -> Revoked:
    """Cancel what is a job and has not finished."""
    revoked = Revoked()
    for task_id in map(str, task_ids):
        job_id = job_id_of(task_id)
        state = reconnecting(ledger.cancel, job_id, actor=ACTOR)
        if state == State.RUNNING:
            revoked.running.append(task_id)
        elif state is not None:
            revoked.cancelled.append(task_id)
        elif ledger.outcome_of(job_id) is not None:
            revoked.finished.append(task_id)
        else:
            revoked.no_jobs.append(task_id)
    return revoked


def refuse_rate_limit(task_name: Any) -> None:
    if getattr(task_of(str(task_name)), "is_ledger_task", False):
        raise TypeError(f"rate_limit is not for a LedgerTask: {LIMIT}")


def outside_event_loop[T](function: Callable[..., T], *args: Any) -> T:
    """Django refuses its database inside a running event loop; a thread has none."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return function(*args)

    def call() -> T:
        try:
            return function(*args)
        finally:
            connection.close()

    with ThreadPoolExecutor(1, thread_name_prefix="revoke") as thread:
        return thread.submit(call).result()
