"""What ``manage.py check --deploy`` refuses: settings under which a promise does not hold.

Run it where and as the deployment runs: it asks the broker and the database, for a second each.
"""

from __future__ import annotations

import gc
import math
import os
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import redis
from celery import current_app
from django.core.checks import CheckMessage, Error, Warning, register
from django.db import DatabaseError, InterfaceError, connection

from tasks.connections import bounded
from tasks.environment import ForeignLedger
from tasks.registry import ledger_tasks
from tasks.soundness import faults
from tasks.topology import Queue
from tasks.wiring import topology

ASK_WITHIN_S = 1.0
SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "busybox"})
FIRST_PROCESS = Path("/proc/1/comm")
RETRY_LIBRARIES = ("tenacity", "backoff", "retrying", "stamina")


@register(deploy=True)
def the_numbers_fit_together(app_configs: Any, **kwargs: Any) -> Sequence[CheckMessage]:
    return [Error(f.sentence, hint=f.hint, id=f.id) for f in faults(topology())]


# --- one owner of retries -----------------------------------------------------------------


@register(deploy=True)
def the_broker_owns_no_retries(app_configs: Any, **kwargs: Any) -> Sequence[CheckMessage]:
    errors = []
    if current_app.conf.task_retry_on_worker_lost:
        errors.append(
            Error(
                "task_retry_on_worker_lost is on: a second owner of retries, which knows neither"
                " the job's attempts nor the death of a whole worker.",
                hint="Leave it off: the relay queues the job again and counts the crash.",
                id="tasks.E101",
            )
        )
    rejecting = [name for name, task in ledger_tasks().items() if task.reject_on_worker_lost]
    if current_app.conf.task_reject_on_worker_lost:
        rejecting.insert(0, "every task")
    if rejecting:
        errors.append(
            Error(
                "reject_on_worker_lost is on: a job that kills its process is sent again by the"
                f" broker for ever ({', '.join(rejecting)}).",
                hint="Leave it off: after max_crashes the job becomes a dead letter.",
                id="tasks.E102",
            )
        )
    return errors


@register(deploy=True)
def clients_leave_retries_to_the_task(app_configs: Any, **kwargs: Any) -> Sequence[CheckMessage]:
    return [
        Warning(
            f"{client} retries by itself: each attempt of a job calls up to {retries + 1} times,"
            " and the downstream's limit does not count them.",
            hint="Build it without retries; autoretry_for and RetryAfter of the task do this.",
            id="tasks.W101",
        )
        for client, retries in sorted(retrying_clients())
    ]


def retrying_clients() -> set[tuple[str, int]]:
    """Of the HTTP clients that exist in this process, those that retry."""
    found = set()
    for thing in gc.get_objects():
        kind = type(thing)
        if kind.__name__ in ("HTTPAdapter", "HTTPTransport", "AsyncHTTPTransport"):
            retries = retries_of(thing)
            if retries:
                found.add((f"{kind.__module__.partition('.')[0]}.{kind.__name__}", retries))
    return found


def retries_of(transport: Any) -> int:
    """Of an adapter of requests or a transport of httpx."""
    pool = getattr(transport, "_pool", None)
    if pool is not None:
        return int(getattr(pool, "_retries", 0) or 0)
    return int(getattr(getattr(transport, "max_retries", None), "total", 0) or 0)


@register(deploy=True)
def bodies_leave_retries_to_the_task(app_configs: Any, **kwargs: Any) -> Sequence[CheckMessage]:
    return [
        Warning(
            f"The body of the task is wrapped by {library}: it retries inside of one attempt,"
            " and its waits count against the time limit.",
            hint="Remove it; autoretry_for, retry_backoff and max_retries of the task do this.",
            obj=name,
            id="tasks.W102",
        )
        for name, library in wrapped_bodies()
    ]


def wrapped_bodies() -> Iterator[tuple[str, str]]:
    for name, task in ledger_tasks().items():
        body = getattr(task.run, "__func__", task.run)
        # functools.wraps copies every name of the function, but not where its code stands.
        file = getattr(getattr(body, "__code__", None), "co_filename", "")
        for library in RETRY_LIBRARIES:
            if is_code_of(library, file):
                yield name, library


def is_code_of(library: str, file: str) -> bool:
    place = getattr(sys.modules.get(library), "__file__", None)
    if place is None:
        return False
    return file == place or (
        place.endswith("__init__.py") and Path(place).parent in Path(file).parents
    )


@register(deploy=True)
def retries_end_while_keys_are_known(app_configs: Any, **kwargs: Any) -> Sequence[CheckMessage]:
    errors = []
    for name, task in ledger_tasks().items():
        queue = topology().queue(task.queue or current_app.conf.task_default_queue)
        known = queue.downstream.remembers_keys if queue.downstream else None
        window_s = retry_window_s(task)
        if known is None or window_s <= known.total_seconds():
            continue
        errors.append(
            Error(
                f"Its retries go on for {spoken(window_s)}, and {downstream_of(queue)} knows an"
                f" idempotency key for {known}: a late retry would do the work twice.",
                hint="Lower max_retries or retry_backoff_max of the task.",
                obj=name,
                id="tasks.E103",
            )
        )
    return errors


def retry_window_s(task: Any) -> float:
    """Seconds from the first run to the last retry, at the longest."""
    if task.max_retries is None:
        return math.inf
    backoff = getattr(task, "retry_backoff", False)
    if not backoff:
        return float(task.max_retries * task.default_retry_delay)
    longest = getattr(task, "retry_backoff_max", 600)
    # Doubling beyond the longest delay says nothing new, and 2**1000 is no float.
    delays = (min(longest, int(backoff) * 2 ** min(n, 40)) for n in range(task.max_retries))
    return float(sum(delays))


def spoken(seconds: float) -> str:
    return "ever" if math.isinf(seconds) else str(timedelta(seconds=seconds))


def downstream_of(queue: Queue) -> str:
    return queue.downstream.name if queue.downstream else ""


# --- delivery and stopping ----------------------------------------------------------------


@register(deploy=True)
def messages_are_acked_late_and_one_by_one(
    app_configs: Any, **kwargs: Any
) -> Sequence[CheckMessage]:
    conf = current_app.conf
    if conf.task_acks_late and conf.worker_prefetch_multiplier == 1:
        return []
    return [
        Error(
            f"task_acks_late is {conf.task_acks_late} and worker_prefetch_multiplier"
            f" {conf.worker_prefetch_multiplier}: a worker would hold jobs that it does not run,"
            " or lose the message of one that it has not claimed.",
            hint="Leave them at True and 1.",
            id="tasks.E104",
        )
    ]


@register(deploy=True)
def the_broker_outwaits_every_run(app_configs: Any, **kwargs: Any) -> Sequence[CheckMessage]:
    given = (current_app.conf.broker_transport_options or {}).get("visibility_timeout")
    needed = topology().longest_s
    if given is None or given > needed:
        return []
    return [
        Error(
            f"The visibility timeout of the broker is {given} s, and the longest time limit with"
            f" its stop grace {needed:g} s: what still runs would be delivered again.",
            hint="Take it from the topology, as config/celeryconfig.py does.",
            id="tasks.E105",
        )
    ]


@register(deploy=True)
def the_grace_outlasts_the_drain(app_configs: Any, **kwargs: Any) -> Sequence[CheckMessage]:
    given = os.environ.get("STOP_GRACE_S")
    if not given:
        return []
    return [
        Error(
            f"queue {queue.name}: STOP_GRACE_S={given}, and a worker needs {queue.stop_grace_s:g} s"
            f" after SIGTERM: {queue.drain_s} s of drain and the rest to give back.",
            hint="Raise stop_grace_period (terminationGracePeriodSeconds), or lower drain.",
            id="tasks.E106",
        )
        for queue in topology().queues.values()
        if float(given) < queue.stop_grace_s
    ]


@register(deploy=True)
def no_shell_is_the_first_process(app_configs: Any, **kwargs: Any) -> Sequence[CheckMessage]:
    try:
        first = FIRST_PROCESS.read_text().strip()
    except OSError:
        return []
    if first not in SHELLS:
        return []
    return [
        Error(
            f"Process 1 is a shell ({first}): it passes no SIGTERM on, and at the end of the grace"
            " every run is killed.",
            hint='Start it in exec form: command: ["celery", ...], or with "exec celery ...".',
            id="tasks.E107",
        )
    ]


# --- the servers --------------------------------------------------------------------------


@register(deploy=True)
def the_broker_evicts_nothing(app_configs: Any, **kwargs: Any) -> Sequence[CheckMessage]:
    """INFO, because managed servers often refuse CONFIG."""
    messages: list[CheckMessage] = []
    for url in str(current_app.conf.broker_url or "").split(";"):
        if not url.startswith(("redis://", "rediss://")):
            continue
        try:
            policy = eviction_policy(url)
        except redis.RedisError as error:
            messages.append(
                Warning(
                    f"The broker did not say whether it evicts: {type(error).__name__}.",
                    hint="Run check --deploy where the workers run.",
                    id="tasks.W108",
                )
            )
            continue
        if policy != "noeviction":
            messages.append(
                Error(
                    f"The broker evicts: its maxmemory-policy is {policy}. Messages would vanish"
                    " under load, and with them the bindings of the queues.",
                    hint="Set maxmemory-policy noeviction; let caches have a server of their own.",
                    id="tasks.E108",
                )
            )
    return messages


def eviction_policy(url: str) -> str:
    with redis.Redis.from_url(
        url, socket_timeout=ASK_WITHIN_S, socket_connect_timeout=ASK_WITHIN_S
    ) as client:
        memory: Any = client.info("memory")
    return str(memory["maxmemory_policy"])


@register(deploy=True)
def the_ledger_is_ours(app_configs: Any, **kwargs: Any) -> Sequence[CheckMessage]:
    try:
        with bounded():
            connection.ensure_connection()
    except ForeignLedger as error:
        hint = "One environment, one database."
        return [Error(str(error), hint=hint, id="tasks.E109")]
    except (DatabaseError, InterfaceError) as error:
        return [
            Warning(
                f"The ledger did not say whose it is: {type(error).__name__}.",
                hint="Run check --deploy where the workers run.",
                id="tasks.W109",
            )
        ]
    return []
