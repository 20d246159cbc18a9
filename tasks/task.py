"""``LedgerTask``: an ordinary Celery task whose jobs live in the ledger.

Change the base of an existing task and its callers keep working: ``.delay()``,
``.apply_async()``, signatures and ``send_task`` accept a job instead of publishing a message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from celery import Celery, Task, signals
from celery.exceptions import MaxRetriesExceededError, Retry
from celery.result import AsyncResult

from tasks import inline
from tasks.enqueue import Item, accept
from tasks.errors import Interrupted, RetryAfter, TasksError
from tasks.execute import call_body, execute, is_running
from tasks.keys import check_template
from tasks.payload import signature_of
from tasks.results import LedgerBackend
from tasks.run import NO_RUN, current_run

# Options of apply_async that mean something else here, with what to write instead. The
# complete table, with what is kept and mapped, is docs/compatibility.md.
REFUSED = {
    "time_limit": "set time_limit on the task or on its queue",
    "soft_time_limit": "set soft_time_limit on the task",
    "chord": "let the last job of a group enqueue the next step, with a key of its own",
    "exchange": "name a queue",
    "routing_key": "name a queue",
    "compression": "payloads do not travel over the broker, there is nothing to compress",
    "shadow": "the admin, Flower and the ledger show one name",
}
# Celery's own plumbing that travels with the job and comes back in ``self.request``.
KEPT = ("group_id", "group_index", "root_id", "parent_id", "replaced_task_nesting")


class LedgerTask(Task):
    """Base of every task that must not be lost.

    ``key``: template of the idempotency key, as ``"capture:{order_id}"``.
    ``unique``: ``"always"`` (a key names one intent while its row lives) or ``"unfinished"``.
    ``dedupe_window``: seconds in which equal calls without a key are one job.
    ``sensitive``: names of arguments that are masked wherever people look.
    ``api``: whether API clients may enqueue it. ``max_crashes``: process deaths until it is
    a dead letter; 1 for work that must not be tried twice.
    """

    abstract = True
    is_ledger_task = True

    key: str | None = None
    unique = "always"
    dedupe_window: float | None = None
    sensitive: tuple[str, ...] = ()
    api = False
    max_crashes = 3

    # The message is acknowledged when the run is settled, whatever its outcome.
    acks_late = True
    acks_on_failure = True
    acks_on_timeout = True
    reject_on_worker_lost = False
    store_errors_even_if_ignored = True

    # Written ``queue=`` and ``priority=`` on the task. Celery deprecates these names for its own
    # routing; here they are the ledger's, so they are taken before Celery looks.
    own_queue: str | None = None
    own_priority: int | None = None

    _tracer: Callable[..., Any] | None = None
    _ledger_backend: LedgerBackend | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in ("queue", "priority"):
            if name in vars(cls):
                setattr(cls, f"own_{name}", vars(cls)[name])
                delattr(cls, name)

    @property
    def queue(self) -> str | None:
        """The queue named on the task; its jobs go to ``default`` when there is none."""
        return self.own_queue

    @property
    def priority(self) -> int | None:
        return self.own_priority

    @classmethod
    def on_bound(cls, app: Celery) -> None:
        """Celery's hook: from now on nothing of this task reaches the broker but ids."""
        check_declaration(cls)
        send_jobs_to_the_ledger(app)

    # --- enqueue ----------------------------------------------------------------------

    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        **options: Any,
    ) -> AsyncResult[Any]:
        """Accept a job. Celery's ``send_task`` is called in between, so that Sentry and others
        who patch these methods see the call."""
        refuse_options(dict(options, shadow=shadow))
        if self.app.conf.task_always_eager:
            answer = accept_call(
                self, args, kwargs, task_id=task_id, link=link, link_error=link_error, **options
            )
            inline.run_job(answer.job_id)
            return self.AsyncResult(str(answer.job_id))
        return super().apply_async(
            args, kwargs, task_id, producer, link, link_error, shadow, **options
        )

    # --- run --------------------------------------------------------------------------

    @property
    def __trace__(self) -> Callable[..., Any] | None:
        """Celery builds the tracer of a task and calls it per message; ours claims first."""
        return None if self._tracer is None else self._trace

    @__trace__.setter
    def __trace__(self, tracer: Callable[..., Any] | None) -> None:
        self._tracer = tracer

    def _trace(self, uuid: str, args: Any, kwargs: Any, request: dict[str, Any]) -> Any:
        assert self._tracer is not None
        return execute(self, self._tracer, uuid, args, kwargs, request)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The body, as a plain function or inside its job."""
        if is_running(self):
            return call_body(self, args, kwargs)
        return super().__call__(*args, **kwargs)

    def retry(
        self,
        args: Any = None,
        kwargs: Any = None,
        exc: BaseException | None = None,
        throw: bool = True,
        eta: datetime | None = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **options: Any,
    ) -> Retry:
        """Celery's retry, with the delay kept in the ledger. Its arguments cannot change."""
        if isinstance(exc, TasksError) and not isinstance(exc, RetryAfter):
            raise exc  # a signal of ours, caught by a wide autoretry_for
        run = current_run()
        if run is NO_RUN or run.task is not self:
            raise exc or RuntimeError(f"{self.name}: retry() outside a job")
        if args or kwargs or options:
            raise TypeError("a retry runs the same job; enqueue another one for other arguments")
        limit = self.max_retries if max_retries is None else max_retries
        if limit is not None and run.claim.attempts >= limit:
            run.exhausted = True
            raise exc or MaxRetriesExceededError(
                f"Can't retry {self.name}[{run.job_id}]: {limit} retries are spent",
                task_args=self.request.args,
                task_kwargs=self.request.kwargs,
            )
        when = eta or (self.default_retry_delay if countdown is None else countdown)
        run.retry = Retry(exc=exc, when=when)
        if throw:
            raise run.retry
        return run.retry

    @property
    def backend(self) -> LedgerBackend:
        """Results are read from the ledger, whatever ``result_backend`` plain tasks use."""
        if self._ledger_backend is None:
            self._ledger_backend = LedgerBackend(self.app)
        return self._ledger_backend

    @backend.setter
    def backend(self, value: Any) -> None:
        raise AttributeError("the results of a LedgerTask are in the ledger")


def check_declaration(task: type[LedgerTask]) -> None:
    """What is wrong with a task is said when its module is imported."""
    if task.unique not in ("always", "unfinished"):
        raise ValueError(f"{task.name}: unique must be 'always' or 'unfinished'")
    if task.key and task.dedupe_window:
        raise ValueError(f"{task.name}: give key or dedupe_window, not both")
    if task.max_crashes < 1:
        raise ValueError(f"{task.name}: max_crashes must be at least 1")


def refuse_options(options: Mapping[str, Any]) -> None:
    for name, remedy in REFUSED.items():
        if options.get(name) is not None:
            raise TypeError(f"{name} is not supported by LedgerTask: {remedy}")
    if options.get("serializer") not in (None, "json"):
        raise TypeError("payloads are JSON: annotate the parameters to have other types restored")


# --- from Celery's calls to an Item -------------------------------------------------------


def send_jobs_to_the_ledger(app: Celery) -> None:
    """Wrap ``app.send_task``, the one place where Celery publishes a task by name."""
    if getattr(app.send_task, "sends_jobs_to_the_ledger", False):
        return
    publish = app.send_task

    def send_task(name: str, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        task = options.get("task_type") or app.tasks.get(name)
        if not getattr(task, "is_ledger_task", False):
            return publish(name, args, kwargs, **options)
        answer = accept_call(task, args, kwargs, **options)
        return (options.get("result_cls") or task.AsyncResult)(str(answer.job_id))

    send_task.sends_jobs_to_the_ledger = True  # type: ignore[attr-defined]
    app.send_task = send_task  # type: ignore[method-assign]


def accept_call(task: Any, args: Any, kwargs: Any, **options: Any) -> Any:
    """Accept the job that a Celery call means."""
    payload = signature_of(task).bind(args or (), kwargs or {})
    headers = announce(task, args, kwargs, options)
    return accept(
        task,
        Item(
            payload,
            priority=options.get("priority") or 0,
            run_at=moment(options.get("eta"), options.get("countdown")),
            start_by=moment(options.get("expires"), None),
            queue=queue_name(options.get("queue")),
            job_id=job_id(options.get("task_id")),
            headers=headers,
        ),
    )


def announce(task: Any, args: Any, kwargs: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """The headers that travel with the job; ``before_task_publish`` may add to them."""
    headers: dict[str, Any] = dict(options.get("headers") or {})
    if signals.before_task_publish.receivers:
        known = {"task": task.name, "id": options.get("task_id")}
        published = {**known, **headers}
        signals.before_task_publish.send(
            sender=task.name,
            body=(args or (), kwargs or {}, {}),
            exchange="",
            routing_key=queue_name(options.get("queue")) or task.queue,
            headers=published,
            properties={},
            declare=[],
            retry_policy={},
        )
        headers = {name: published[name] for name in published if name not in known}
    celery = celery_headers(task, options)
    return {**headers, **({"celery": celery} if celery else {})}


def celery_headers(task: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Links, chains and groups, as the worker's request wants them."""
    parent = task.app.current_worker_task
    kept = {name: options.get(name) for name in KEPT}
    if parent is not None:
        kept["root_id"] = kept["root_id"] or parent.request.root_id or parent.request.id
        kept["parent_id"] = kept["parent_id"] or parent.request.id
    kept["group"] = kept.pop("group_id")
    kept["callbacks"] = signatures(options.get("link"))
    kept["errbacks"] = signatures(options.get("link_error"))
    kept["chain"] = signatures(options.get("chain"))
    return {name: value for name, value in kept.items() if value}


def signatures(linked: Any) -> list[dict[str, Any]]:
    if not linked:
        return []
    return [dict(s) for s in (linked if isinstance(linked, list | tuple) else [linked])]


def moment(at: Any, countdown: float | None) -> datetime | None:
    """Celery takes a moment, its ISO form, or seconds from now."""
    if countdown is not None:
        return datetime.now(UTC) + timedelta(seconds=countdown)
    if isinstance(at, int | float):
        return datetime.now(UTC) + timedelta(seconds=at)
    if isinstance(at, str):
        at = datetime.fromisoformat(at)
    if at is not None and at.tzinfo is None:
        return at.replace(tzinfo=UTC)  # Celery reads naive times as UTC
    return at


def queue_name(queue: Any) -> str | None:
    return getattr(queue, "name", queue)


def job_id(task_id: Any) -> UUID | None:
    if task_id is None:
        return None
    try:
        return UUID(str(task_id))
    except ValueError:
        raise TypeError(
            f"task_id must be a UUID; to name the intent, enqueue(task, payload, key={task_id!r})"
        ) from None
