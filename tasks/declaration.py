"""What a LedgerTask may declare. A mistake is said when its module is imported."""

from __future__ import annotations

import difflib
import inspect
from functools import partial, wraps
from typing import Any

from tasks.coroutines import run_coroutine
from tasks.keys import check_template
from tasks.topology import RATE

LIMIT = (
    "it acts in each worker and delays whatever waits behind; write rate_limit= on the task, or"
    " give its queue a Downstream(rate=...) in the topology"
)
ACK = "the ledger decides what happens to a run; remove it from the task"
RETRY_OWNER = "the relay counts crashes and queues the job again; see max_crashes"
RECORD = "the ledger is the record of every run; remove it from the task"

# Attributes of a task, the value that stands for "not set", and what is wrong with any other.
REFUSED: dict[str, tuple[Any, str]] = {
    "rate_limit": (None, LIMIT),
    "acks_late": (True, ACK),
    "acks_on_failure": (True, ACK),
    "acks_on_timeout": (True, ACK),
    "acks_on_failure_or_timeout": (None, ACK),
    "reject_on_worker_lost": (False, RETRY_OWNER),
    "retry_on_worker_lost": (False, RETRY_OWNER),
    "store_errors_even_if_ignored": (True, RECORD),
    "serializer": ("json", "payloads are JSON: annotate the parameters"),
    "exchange": (None, "name a queue"),
    "routing_key": (None, "name a queue"),
    "compression": (None, "payloads do not travel over the broker"),
    "delivery_mode": (None, "the ledger keeps the job, not the broker"),
    "_dump_pydantic_arguments": (None, "pydantic=True is not needed: annotate the parameters"),
}
# Options that Celery reads without a default on the task.
AUTORETRY = (
    "autoretry_for", "dont_autoretry_for", "retry_kwargs", "retry_backoff", "retry_backoff_max",
    "retry_jitter", "override_max_retries",
)  # fmt: skip
SPELT_LIKE = 0.75  # from 0 to 1; attributes of a project's own are rarely this close
# Settings that reach a task which sets nothing itself; the ledger's own values win over them.
HARMLESS_SETTINGS = ("acks_on_failure_or_timeout",)


def check_declaration(task: Any) -> None:
    """ValueError names the attribute and what to write instead."""
    for name, (unset, remedy) in REFUSED.items():
        value = getattr(task, name, unset)
        if value != unset and not (name in HARMLESS_SETTINGS and is_the_setting(task, name, value)):
            shown = name.removeprefix("_")
            raise ValueError(f"{task.name}: {shown}={value!r} is not for a LedgerTask: {remedy}")
    check_spelling(task)
    if task.unique not in ("always", "unfinished"):
        raise ValueError(f"{task.name}: unique must be 'always' or 'unfinished'")
    if task.key:
        check_key_template(task)
    if task.key and task.dedupe_window:
        raise ValueError(f"{task.name}: give key or dedupe_window, not both")
    if task.own_rate_limit is not None and not RATE.match(str(task.own_rate_limit)):
        raise ValueError(f"{task.name}: rate_limit={task.own_rate_limit!r} is not like '10/m'")
    if task.atomic and inspect.iscoroutinefunction(task.run):
        raise ValueError(f"{task.name}: atomic needs a plain def: a coroutine has no transaction")
    if task.max_crashes < 1:
        raise ValueError(f"{task.name}: max_crashes must be at least 1")


def check_spelling(task: Any) -> None:
    """Celery keeps any option as an attribute, so a misspelt one would do nothing, silently."""
    own, *bases = task.__mro__
    known = [*AUTORETRY, *(name for base in bases for name in vars(base) if name[0] != "_")]
    for name in vars(own):
        if name.startswith("_") or name in known or callable(getattr(task, name)):
            continue
        meant = difflib.get_close_matches(name, known, n=1, cutoff=SPELT_LIKE)
        if meant:
            raise ValueError(f"{task.name}: {name} is no option; do you mean {meant[0]}?")


def is_the_setting(task: Any, name: str, value: Any) -> bool:
    return bool(value == task.app.conf[f"task_{name}"])


def check_key_template(task: Any) -> None:
    parameters = inspect.signature(task.run).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        check_template(task.key, parameters)


def run_coroutines(task: Any) -> None:
    """An ``async def`` body runs to its end, also for what wraps it (``autoretry_for``)."""
    given = inspect.getattr_static(task, "run")
    body = getattr(given, "__func__", given)
    if not inspect.iscoroutinefunction(body):
        return

    @wraps(body)
    def run(*args: Any, **kwargs: Any) -> Any:
        return run_coroutine(partial(body, *args, **kwargs))

    task.run = staticmethod(run) if isinstance(given, staticmethod) else run
