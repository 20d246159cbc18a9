"""Puts job ids on the broker. A message is a task name, a job id and its dispatch number."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import structlog
from celery import Celery
from kombu import Exchange, Producer
from kombu.exceptions import BatchPublishError  # type: ignore[attr-defined]

from tasks import message_format
from tasks.batch import longer
from tasks.enqueue import uuid7
from tasks.ledger import Dispatched
from tasks.topology import Queue

log = structlog.get_logger(__name__)

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 5.0
# The default exchange of AMQP, which delivers to the queue that the routing key names.
DIRECT = Exchange("")

# Seconds, hard and soft.
TimeLimits = tuple[float | None, float | None]


class Publisher:
    """One connection to the broker, and the memory of whether it works."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        # Any: the published types of kombu lack half of what both have.
        self.connection: Any = None
        self.producer: Any = None
        self.declared: set[str] = set()
        self.failures = 0
        self.try_again_at = 0.0

    def is_reachable(self) -> bool:
        """Whether jobs may be marked for the broker now. After a failure it is asked first, but
        not too often: a job counts as dispatched only when its message can be sent."""
        if not self.failures:
            return True
        if time.monotonic() < self.try_again_at:
            return False
        try:
            self.connect()
        except self.errors() as exc:
            self.failed(exc)
            return False
        return True

    @property
    def is_doubtful(self) -> bool:
        """Whether the last try failed: the next one should risk one job only."""
        return self.failures > 0

    def publish(self, queue: Queue, groups: Sequence[Sequence[Dispatched]]) -> bool:
        """Publish in order, in one round trip where the broker can. Bounded by its timeouts.

        The jobs of a group share a message.
        False: some may not have been sent. Give all of them back: a message that did get
        through carries a dispatch number that is stale by then.
        """
        try:
            producer = self.connected(queue.name)
            with producer.batch(max_size=len(groups)):
                for jobs in groups:
                    if len(jobs) > 1:
                        self.send_together(producer, queue, jobs)
                    else:
                        self.send(producer, queue, jobs[0])
        except self.errors() as exc:
            self.failed(exc)
            return False
        self.worked()
        return True

    def connect(self) -> None:
        if self.producer is not None:
            return
        self.connection = self.app.connection_for_write()
        # Else kombu tries twice, and sleeps for two seconds in between.
        self.connection.ensure_connection(
            max_retries=1, interval_start=0, reraise_as_library_errors=False
        )
        self.producer = Producer(self.connection.channel(), exchange=DIRECT, auto_declare=False)
        self.declared = set()

    def connected(self, queue: str) -> Any:
        self.connect()
        if queue not in self.declared:
            self.app.amqp.queues[queue](self.producer.channel).declare()
            self.declared.add(queue)
        return self.producer

    def send(self, producer: Any, queue: Queue, job: Dispatched) -> None:
        limits = self.time_limits(queue, job)
        put(producer, queue, headers_of(job.task, str(job.id), job.dispatch_no, limits))

    def send_together(self, producer: Any, queue: Queue, jobs: Sequence[Dispatched]) -> None:
        put(producer, queue, headers_of_batch(jobs, self.time_limits(queue, jobs[0])))

    def time_limits(self, queue: Queue, job: Dispatched) -> TimeLimits:
        """Seconds, hard and soft: of the task, else of its queue. Without the task's code here
        the worker decides."""
        task: Any = self.app.tasks.get(job.task)
        if task is None:
            return None, None
        return task.time_limit or queue.time_limit, task.soft_time_limit

    def errors(self) -> tuple[type[Exception], ...]:
        if self.connection is None:
            return (OSError,)
        known = self.connection.connection_errors + self.connection.channel_errors
        # Neither of them, though a connection that breaks during a batch is one.
        return (OSError, BatchPublishError, *known)

    def failed(self, exc: Exception) -> None:
        if not self.failures:
            log.error("broker_away", error=repr(exc))
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**self.failures)
        self.failures = min(self.failures + 1, 10)
        self.try_again_at = time.monotonic() + pause_s
        self.close()

    def worked(self) -> None:
        if self.failures:
            log.warning("broker_back")
        self.failures = 0

    def close(self) -> None:
        connection, self.connection, self.producer = self.connection, None, None
        if connection is not None:
            connection.collect(socket_timeout=1.0)  # without asking the broker for leave


def put(producer: Any, queue: Queue, headers: Mapping[str, Any]) -> None:
    producer.publish(
        ((), {}, {}),
        routing_key=queue.name,
        serializer="json",
        headers=headers,
        correlation_id=headers["id"],
        delivery_mode="persistent",
        retry=False,
    )


def headers_of_batch(jobs: Sequence[Dispatched], time_limits: TimeLimits) -> dict[str, Any]:
    """An id and a dispatch number of its own, which no job has: a worker of a release that knows
    no batches finds nothing to claim, and the relay sends the jobs again."""
    hard_s, soft_s = time_limits
    return {
        **headers_of(jobs[0].task, str(uuid7()), 1, (longer(hard_s), longer(soft_s))),
        "batch": [[str(job.id), job.dispatch_no] for job in jobs],
    }


def headers_of(task: str, job_id: str, dispatch_no: int, time_limits: TimeLimits) -> dict[str, Any]:
    """Celery's second message protocol. No argument of a job is in there."""
    return {
        "lang": "py",
        "task": task,
        "id": job_id,
        "root_id": job_id,
        "parent_id": None,
        "group": None,
        "retries": 0,
        "eta": None,
        "expires": None,
        "timelimit": time_limits,
        "argsrepr": "",
        "kwargsrepr": "",
        "origin": "relay",
        "dispatch_no": dispatch_no,
        "v": message_format.NEWEST,
    }
