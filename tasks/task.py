"""``LedgerTask``: an ordinary Celery task whose jobs live in the ledger.

Change the base of an existing task and its callers keep working: ``.delay()``,
``.apply_async()``, signatures and ``send_task`` accept a job instead of publishing a message.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import cached_property
from typing import Any

from celery import Celery, Task
from celery.exceptions import Retry
from celery.result import AsyncResult, EagerResult

from tasks import inline
from tasks.batch import execute_batch
from tasks.calls import (
    UNPACKED,
    accept_call,
    moment,
    refuse_options,
    routed_queue,
    send_jobs_to_the_ledger,
)
from tasks.declaration import check_declaration, run_coroutines
from tasks.errors import RetryAfter, TasksError
from tasks.execute import call_body, execute, is_running
from tasks.results import LedgerBackend
from tasks.run import NO_RUN, current_run
from tasks.task_stack import ContextStack


class LedgerTask(Task[Any, Any]):
    """Base of every task that must not be lost.

    ``key``: template of the idempotency key, as ``"capture:{order_id}"``.
    ``unique``: ``"always"`` (a key names one intent while its row lives) or ``"unfinished"``.
    ``dedupe_window``: seconds in which equal calls without a key are one job.
    ``sensitive``: names of arguments that are masked wherever people look.
    ``api``: whether API clients may enqueue it.
    ``atomic``: body and success commit in one transaction: its effects in this database happen
    exactly once.
    ``max_crashes``: process deaths until it is a dead letter; 1 for work that must not be tried
    twice.
    """

    abstract = True
    is_ledger_task = True

    key: str | None = None
    unique = "always"
    dedupe_window: float | None = None
    sensitive: tuple[str, ...] = ()
    api = False
    atomic = False
    max_crashes = 3

    # The message is acknowledged when the run is settled, whatever its outcome.
    acks_late = True
    acks_on_failure = True
    acks_on_timeout = True
    reject_on_worker_lost = False
    retry_on_worker_lost = False
    store_errors_even_if_ignored = True
    serializer = "json"

    # Written ``queue=``, ``priority=`` and ``rate_limit=`` on the task. Celery's own meaning would
    # act in each worker; here they are the relay's, so they are taken before Celery looks.
    own_queue: str | None = None
    own_priority: int | None = None
    own_rate_limit: str | None = None

    Request = "tasks.prefork:Request"  # what a worker knows of a message

    _tracer: Callable[..., Any] | None = None
    _ledger_backend: LedgerBackend | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in ("queue", "priority", "rate_limit"):
            if name in vars(cls):
                setattr(cls, f"own_{name}", vars(cls)[name])
                delattr(cls, name)

    @property
    def queue(self) -> str | None:
        """The queue named on the task, else by the setting ``task_routes``, else None."""
        return self.own_queue or routed_queue(self)

    @cached_property
    def priority(self) -> int | None:  # type: ignore[override]  # taken in __init_subclass__
        # Looked up once, as Celery does: to ask its settings takes longer than to check a job.
        given = self.own_priority
        return self.app.conf.task_default_priority if given is None else given

    @classmethod
    def on_bound(cls, app: Celery) -> None:
        """Celery's hook: from now on nothing of this task reaches the broker but ids."""
        check_declaration(cls)
        run_coroutines(cls)
        send_jobs_to_the_ledger(app)
        # Coroutines share a thread: each sees the request of its own job.
        stack: Any = ContextStack(f"{cls.name}.request")
        cls.request_stack = stack

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
            return self.apply(args, kwargs, link, link_error, task_id, **options)
        return super().apply_async(
            args, kwargs, task_id, producer, link, link_error, shadow, **options
        )

    def apply(
        self,
        args: Any = None,
        kwargs: Any = None,
        link: Any = None,
        link_error: Any = None,
        task_id: str | None = None,
        retries: int | None = None,
        throw: bool | None = None,
        logfile: Any = None,
        loglevel: Any = None,
        headers: Any = None,
        **options: Any,
    ) -> EagerResult[Any]:
        """Accept a job and run it here, to its end: retries do not wait, links run too.

        ``throw``: raise what the body raised (default: the setting ``task_eager_propagates``).
        """
        if retries:
            raise TypeError("retries are counted by the ledger and begin at 0")
        given = {"task_id": task_id, "link": link, "link_error": link_error, "headers": headers}
        refuse_options(options)
        answer, result = accept_call(self, args, kwargs, {**options, **given})
        error = inline.run_to_the_end(answer.job_id)
        if error is not None and (self.app.conf.task_eager_propagates if throw is None else throw):
            raise error
        meta = self.backend.get_task_meta(result.id)
        value = meta["result"] if error is None else error
        return EagerResult(result.id, value, meta["status"], meta["traceback"], name=self.name)

    def map(self, it: Any) -> Any:
        raise TypeError(UNPACKED)

    def starmap(self, it: Any) -> Any:
        raise TypeError(UNPACKED)

    def chunks(self, it: Any, n: int) -> Any:
        raise TypeError(UNPACKED)

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
        if request.get("batch"):
            return execute_batch(self, self._tracer, uuid, request)
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
        exc: Exception | None = None,
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
            raise exc or Retry("Task can be retried", None)
        if args or kwargs or options:
            raise TypeError("a retry runs the same job; enqueue another one for other arguments")
        limit = self.max_retries if max_retries is None else max_retries
        if limit is not None and run.claim.attempts >= limit:
            run.exhausted = True
            raise exc or self.MaxRetriesExceededError(
                f"Can't retry {self.name}[{run.job_id}]: {limit} retries are spent",
                task_args=self.request.args,
                task_kwargs=self.request.kwargs,
            )
        delay: Any = self.default_retry_delay if countdown is None else countdown
        run.retry = Retry(exc=exc, when=moment(self.app, eta, None) or delay)
        if throw:
            raise run.retry
        return run.retry

    def update_state(
        self, task_id: str | None = None, state: str | None = None, meta: Any = None, **kwargs: Any
    ) -> None:
        """Celery's custom states, kept as the progress of the run that calls."""
        run = current_run()
        if run is NO_RUN:
            return
        if task_id not in (None, str(run.job_id)):
            raise TypeError("a run reports its own state; to stop another job, revoke it")
        self.backend.store_result(str(run.job_id), meta, state)

    def replace(self, sig: Any) -> Any:
        raise TypeError(
            "replace would give one id to two jobs; enqueue the next job, or link it: "
            "task.apply_async(..., link=next.s())"
        )

    @property  # type: ignore[override]  # a subclass of Celery's Backend, but not in its stubs
    def backend(self) -> LedgerBackend:
        """Results are read from the ledger, whatever ``result_backend`` plain tasks use."""
        if self._ledger_backend is None:
            self._ledger_backend = LedgerBackend(self.app, of_jobs=True)
        return self._ledger_backend

    @backend.setter
    def backend(self, value: Any) -> None:
        raise AttributeError("the results of a LedgerTask are in the ledger")
