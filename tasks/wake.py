"""Tells a sleeping relay, after the caller's commit, that there is work.

A hint and nothing more: the relay polls anyway. It is sent only when a relay says that it
sleeps, because a NOTIFY in every busy transaction would serialise their commits.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

import structlog
from django.conf import settings
from django.db import DatabaseError, connection, transaction

CHANNEL = "tasks_due"
# Seconds after which a relay that said it sleeps looks once more: a statement that took less and
# did not see it asleep needs no second look of its own.
LOOKS_AGAIN_AFTER_S = 0.02

log = structlog.get_logger(__name__)


class Hint:
    """An on-commit hook that also remembers which jobs wait for this commit."""

    def __init__(self, job_ids: Iterable[UUID]) -> None:
        self.job_ids = set(job_ids)

    def __call__(self) -> None:
        if not getattr(settings, "TASKS_LEDGER_NOTIFY", True):
            return
        try:
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT pg_notify(%s, '') FROM tasks_relay WHERE sleeping LIMIT 1", [CHANNEL]
                )
        except DatabaseError as exc:
            log.warning("relay_hint_failed", error=str(exc))


def after_insert(job_id: UUID, *, relay_sleeps: bool, took_s: float) -> None:
    """``after_commit``, for a statement that also looked whether a relay sleeps.

    Outside a transaction it has committed, so where none sleeps there is nothing left to do.
    """
    has_committed = not connection.in_atomic_block and connection.get_autocommit()
    if relay_sleeps or not has_committed or took_s >= LOOKS_AGAIN_AFTER_S:
        after_commit(job_id)


def after_commit(*job_ids: UUID) -> None:
    """Register the hint once per transaction (and savepoint), at once without one."""
    hint = pending_hint()
    if hint is not None:
        hint.job_ids.update(job_ids)
    else:
        transaction.on_commit(Hint(job_ids))


def pending_hint() -> Hint | None:
    """The hint of the innermost open savepoint, so that its rollback takes the ids with it."""
    if not connection.run_on_commit:
        return None
    savepoints, hook, *_ = connection.run_on_commit[-1]
    same = savepoints == set(connection.savepoint_ids)
    return hook if same and isinstance(hook, Hint) else None


def waits_for_commit(job_id: UUID) -> bool:
    """Whether this very transaction enqueued the job: nobody else can see it yet."""
    return any(
        isinstance(hook, Hint) and job_id in hook.job_ids
        for _, hook, *_ in connection.run_on_commit
    )
