"""Tasks as teams write them; workers under ``tests.settings`` know them.

What a run saw is left in ``SEEN`` (of this process) or returned.
"""

from __future__ import annotations

import os
import time
from datetime import date, datetime
from typing import Any
from uuid import UUID

from celery import Task, shared_task
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded
from django.contrib.auth.models import Group
from django.db import IntegrityError, connection

from tasks.errors import Snooze
from tasks.task import LedgerTask

SEEN: list[Any] = []
RETURNED: dict[str, Any] = {}


class Unavailable(Exception):
    """The usual transient error."""


class Expected(Exception):
    """What ``throws`` names."""


# --- ledger tasks -------------------------------------------------------------------------


@shared_task(base=LedgerTask)
def add(x: int, y: int = 0) -> int:
    return x + y


@shared_task(base=LedgerTask)
def note(text: str) -> str:
    SEEN.append(text)
    return text


@shared_task(base=LedgerTask, bind=True)
def look_at_request(self: Any) -> dict[str, Any]:
    """Everything of ``self.request`` that people use."""
    request = self.request
    names = [
        *("id", "root_id", "parent_id", "retries", "headers", "delivery_info", "group"),
        *("hostname", "args", "kwargs", "is_eager", "called_directly", "stamps"),
    ]
    return {name: getattr(request, name, None) for name in names}


@shared_task(base=LedgerTask, bind=True)
def look_at_child(self: Any) -> str:
    return str(look_at_request.delay().id)


@shared_task(base=LedgerTask, bind=True, max_retries=2)
def retry_by_hand(
    self: Any, throw: bool = True, countdown: float | None = None, eta: datetime | None = None
) -> str:
    """Fails once, then succeeds."""
    if self.request.retries == 0:
        self.retry(exc=Unavailable("first"), throw=throw, countdown=countdown, eta=eta)
        SEEN.append("after retry")
    return f"retries: {self.request.retries}"


@shared_task(base=LedgerTask, bind=True, max_retries=1)
def retry_for_ever(self: Any, exc: bool = True, **options: Any) -> None:
    raise self.retry(exc=Unavailable("again") if exc else None, **options)


@shared_task(base=LedgerTask, bind=True, max_retries=1)
def retry_then_raise(self: Any) -> str:
    if self.request.retries == 0:
        self.retry(throw=False, countdown=0)
        raise ValueError("after the retry was asked for")
    return "second"


@shared_task(
    base=LedgerTask, bind=True, autoretry_for=(Exception,), dont_autoretry_for=(Expected,),
    retry_backoff=10, retry_backoff_max=25, retry_jitter=False, max_retries=None,
)  # fmt: skip
def retry_by_itself(self: Any, expected: bool = False) -> None:
    raise Expected("no retry") if expected else Unavailable(f"retries: {self.request.retries}")


@shared_task(base=LedgerTask, autoretry_for=(Unavailable,), retry_backoff=1000)
def jittered() -> None:
    raise Unavailable("always")


@shared_task(base=LedgerTask, autoretry_for=(Unavailable,), max_retries=0)
def fail(message: str = "broken") -> None:
    raise Unavailable(message)


@shared_task(base=LedgerTask, throws=(Expected,))
def fail_as_expected() -> None:
    raise Expected("usual")


@shared_task(base=LedgerTask)
def ignore() -> None:
    raise Ignore("not needed any more")


@shared_task(base=LedgerTask, bind=True)
def reject(self: Any, requeue: bool) -> str:
    if self.request.id not in SEEN:
        SEEN.append(self.request.id)
        raise Reject("not now", requeue=requeue)
    return "second"


@shared_task(base=LedgerTask, ignore_result=True)
def forgettable(x: int) -> int:
    return x


@shared_task(base=LedgerTask)
def give_back(name: str) -> Any:
    return RETURNED[name]


@shared_task(base=LedgerTask, bind=True)
def report_progress(self: Any, state: str = "PROGRESS", wait_s: float = 0) -> str:
    self.update_state(state=state, meta={"done": 3, "of": 10})
    SEEN.append(self.AsyncResult(self.request.id)._get_task_meta())
    time.sleep(wait_s)
    return "done"


@shared_task(base=LedgerTask, name="shop.renamed", priority=7, expires=3600)
def named_by_hand() -> str:
    return "renamed"


@shared_task(base=LedgerTask, sensitive=("card",))
def charge(order_id: int, card: str) -> None:
    raise ValueError("declined")


@shared_task(base=LedgerTask, soft_time_limit=1, time_limit=30)
def slow_to_stop(clean_up: bool) -> str:
    try:
        time.sleep(20)
    except SoftTimeLimitExceeded:
        if not clean_up:
            raise
        return "cleaned up"
    return "in time"


@shared_task(base=LedgerTask, time_limit=1)
def endless() -> None:
    time.sleep(60)


@shared_task(base=LedgerTask)
def sleepy(seconds: float) -> str:
    time.sleep(seconds)
    return "awake"


@shared_task(base=LedgerTask, autoretry_for=(Unavailable,), max_retries=1, default_retry_delay=0)
async def asynchronous(fail: bool = False) -> str:
    if fail:
        raise Unavailable("from a coroutine")
    return "awaited"


@shared_task(base=LedgerTask)
def spoil_the_transaction(snooze: bool = False) -> None:
    try:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO auth_group (id, name) VALUES (1, 'a'), (1, 'a')")
    except IntegrityError:
        if snooze:
            raise Snooze(60) from None
        raise


@shared_task(base=LedgerTask)
def types_of(**values: Any) -> dict[str, str]:
    return {name: type(value).__name__ for name, value in values.items()}


@shared_task(base=LedgerTask)
def typed(
    order: UUID | None = None,
    day: date | None = None,
    at: datetime | None = None,
    counts: dict[int, str] | None = None,
) -> list[str]:
    return [f"{type(value).__name__} {value}" for value in (order, day, at, counts)]


@shared_task(base=LedgerTask)
def untyped(value) -> str:  # type: ignore[no-untyped-def]
    return repr(value)


@shared_task(base=LedgerTask)
def with_a_model(group: Group) -> str:
    return group.name


@shared_task(base=LedgerTask)
def enqueue_more(depth: int) -> int:
    if depth:
        enqueue_more.delay(depth - 1)
    return depth


@shared_task(base=LedgerTask)
def without_end() -> None:
    without_end.delay()


class Importing(LedgerTask):
    """A base of the shop's own: options and hooks for every task that imports."""

    abstract = True
    autoretry_for = (Unavailable,)
    max_retries = 4
    default_retry_delay = 30
    queue = "bulk"

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        SEEN.append(("before_start", task_id, kwargs))

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        SEEN.append(("on_success", retval))

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        SEEN.append(("on_failure", type(exc).__name__, kwargs))

    def on_retry(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        SEEN.append(("on_retry", type(exc).__name__))

    def after_return(
        self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any
    ) -> None:
        SEEN.append(("after_return", status))


@shared_task(base=Importing)
def import_row(row: UUID, outcome: str = "fine") -> str:
    if outcome == "retry":
        raise Unavailable("later")
    if outcome == "fail":
        raise ValueError("never")
    return outcome


# --- what follows -------------------------------------------------------------------------


@shared_task(base=LedgerTask)
def tell(failed_id: str) -> str:
    """An errback in the old form: it is a job."""
    SEEN.append(("tell", failed_id))
    return failed_id


@shared_task(base=LedgerTask)
def inspect_failure(request: Any, exc: Any, traceback: Any) -> None:
    """An errback in the new form: Celery calls it in the worker."""
    SEEN.append(("inspect_failure", request.id, type(exc).__name__))


# --- plain tasks --------------------------------------------------------------------------


@shared_task
def plain_add(x: int, y: int) -> int:
    SEEN.append(("plain", x + y))
    return x + y


@shared_task(bind=True)
def plain_pid(self: Task[Any, Any]) -> int:
    return os.getpid()


@shared_task(ignore_result=True)
def plain_note(text: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO trace (note, backend) VALUES (%s, pg_backend_pid())", [text])
