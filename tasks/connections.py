"""The database connections of a worker: kept from job to job, healed when they died.

Celery closes the connection before and after every task, whatever CONN_MAX_AGE says. Here it
stays open as long as Django calls it usable. Connections belong to their thread; a forked
child never uses one of its parent's (Celery's own fix-up drops those).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from typing import Any

import structlog
from celery import Celery, signals
from django.db import (
    DEFAULT_DB_ALIAS,
    DatabaseError,
    InterfaceError,
    OperationalError,
    connections,
)
from psycopg.pq import TransactionStatus

from tasks.topology import SLOT_CONNECTIONS

log = structlog.get_logger(__name__)

CONNECT_WITHIN_S = 2  # the least libpq accepts
ACKNOWLEDGED_WITHIN_MS = 4_000  # a host that vanished without a word
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0

LOST = (OperationalError, InterfaceError)


def install(app: Celery) -> None:
    """Replace Celery's way of closing connections in the workers of this app."""
    # Celery's own switch: the number of tasks per connection. Caches are still closed.
    app.add_defaults(lambda: {"CELERY_DB_REUSE_MAX": math.inf})
    signals.task_prerun.connect(before_task, dispatch_uid="tasks.connections.before_task")
    signals.task_postrun.connect(after_task, dispatch_uid="tasks.connections.after_task")


def before_task(task: Any, **_: Any) -> None:
    if not is_inline(task.request):
        drop_unusable()


def after_task(task: Any, **_: Any) -> None:
    if not is_inline(task.request):
        drop_unusable()


def is_inline(request: Any) -> bool:
    """Whether the connection is a caller's, who may be in the middle of a transaction."""
    return bool(request.is_eager or getattr(request, "is_inline", False))


def drop_unusable() -> None:
    """Close what is broken, in a transaction nobody ended, or older than CONN_MAX_AGE."""
    for connection in connections.all(initialized_only=True):
        connection.close_if_unusable_or_obsolete()


def reconnecting[T](function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call it; when the connection turns out to be dead, once more on a new one.

    Also when the statement was refused: a body may have left the session with another role or
    search path, and a new one has neither. For one conditional statement outside a transaction.
    That statement may have been committed without an answer, so the second call must be able to
    find its work done.
    """
    connection = connections[DEFAULT_DB_ALIAS]
    # The call itself is the health check: SELECT 1 before each would only cost time.
    connection.health_check_done = True  # type: ignore[attr-defined]
    try:
        return function(*args, **kwargs)
    except (DatabaseError, InterfaceError):
        if connection.in_atomic_block:
            raise
        connection.close()
        return function(*args, **kwargs)


def persisting[T](function: Callable[..., T], *args: Any, deadline_s: float, **kwargs: Any) -> T:
    """Like ``reconnecting``, again and again while the database is away, for ``deadline_s``.

    In a worker of threads on one of the shared connections, unless it belongs to a transaction.
    """
    ends_at = time.monotonic() + deadline_s
    if _clerks is None or connections[DEFAULT_DB_ALIAS].in_atomic_block or is_on_a_loop():
        return persisting_here(function, ends_at, *args, **kwargs)
    # In the caller's context, so that what is logged there names the job.
    call: Callable[[], T] = partial(
        copy_context().run, persisting_here, function, ends_at, *args, **kwargs
    )
    return _clerks.submit(call).result()


def persisting_here[T](function: Callable[..., T], ends_at: float, *args: Any, **kwargs: Any) -> T:
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            return reconnecting(function, *args, **kwargs)
        except LOST as error:
            if not is_lost() or time.monotonic() + pause_s > ends_at:
                raise
            log.warning("database_away", error=str(error), next_try_s=pause_s)
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)


_clerks: ThreadPoolExecutor | None = None


def share() -> None:
    """From now on ``persisting`` uses a few connections for all threads of this process."""
    global _clerks  # noqa: PLW0603  # the connections of a process
    _clerks = ThreadPoolExecutor(SLOT_CONNECTIONS, thread_name_prefix="ledger")


def is_on_a_loop() -> bool:
    """Whether a wait would stop all coroutines of this thread; Django refuses it then."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def clean_up(expected: int) -> bool:
    """Roll back and drop a connection on which a body left a transaction open. True: it had.

    ``expected``: transactions that were open before the body; a caller's are left alone.
    """
    connection = connections[DEFAULT_DB_ALIAS]
    if expected or not is_in_transaction(connection):
        return False
    log.error("transaction_left_open")
    connection.in_atomic_block = False  # else Django keeps the dead connection to the end of it
    connection.close()
    return True


def is_in_transaction(connection: Any) -> bool:
    if connection.in_atomic_block or connection.connection is None:
        return bool(connection.in_atomic_block)
    status = connection.connection.info.transaction_status
    return not connection.autocommit or status not in (
        TransactionStatus.IDLE,
        TransactionStatus.UNKNOWN,  # the connection is dead, which is another matter
    )


def is_lost() -> bool:
    """Whether the connection is gone, not just the statement refused; never in a transaction."""
    connection = connections[DEFAULT_DB_ALIAS]
    return not connection.in_atomic_block and not connection.is_usable()


@contextmanager
def bounded() -> Iterator[None]:
    """In this thread and block, the default connection is a new one that gives up early.

    There is no statement timeout: it would need a startup parameter that PgBouncer refuses.
    """
    usual = connections[DEFAULT_DB_ALIAS]
    brief = usual.copy()
    brief.settings_dict["OPTIONS"] = {
        **brief.settings_dict.get("OPTIONS", {}),
        "connect_timeout": CONNECT_WITHIN_S,
        "tcp_user_timeout": ACKNOWLEDGED_WITHIN_MS,
    }
    brief.settings_dict["OPTIONS"].pop("pool", None)
    connections[DEFAULT_DB_ALIAS] = brief
    try:
        yield
    finally:
        connections[DEFAULT_DB_ALIAS] = usual
        brief.close()
