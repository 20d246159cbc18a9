"""Which dispatched jobs travel in one message: short ones of the same task, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tasks.ledger import Dispatched
from tasks.registry import task_of
from tasks.sql import fetch
from tasks.topology import Queue

# Seconds that the jobs of one message are expected to run, one after the other: for so long they
# keep others waiting, whatever their priority.
MESSAGE_S = 0.25
# Attempts that a look at the means reads: the latest of all queues.
ATTEMPTS = 500

# Seconds that the body of a task takes.
Means = Mapping[str, float]
Groups = list[list[Dispatched]]


def grouped(jobs: Sequence[Dispatched], size_of: Callable[[str], int]) -> Groups:
    """In order. ``size_of``: how many jobs of a task may share a message."""
    found: Groups = []
    for job in jobs:
        last = found[-1] if found else []
        if last and may_join(job, last, size_of(job.task)):
            last.append(job)
        else:
            found.append([job])
    return found


def may_join(job: Dispatched, group: Sequence[Dispatched], size: int) -> bool:
    """Of an ordering key there must never be two in one message, and what may have killed its
    process must not kill others."""
    first = group[0]
    return first.task == job.task and len(group) < size and not (
        travels_alone(first) or travels_alone(job)
    )  # fmt: skip


def travels_alone(job: Dispatched) -> bool:
    return job.is_ordered or job.is_alone


def size(queue: Queue, task_name: str, means: Means) -> int:
    """How many jobs of this task one message may hold: what is expected to run for 250 ms.

    1 where that is not known, and for what must not share the fate of others: work that must not
    be tried twice, and bodies whose success commits with them. Before a limited downstream no
    message takes more than the part of a slot, or the other slots would wait.
    """
    task: Any = task_of(task_name)
    mean_s = means.get(task_name)
    if queue.batch <= 1 or mean_s is None or task is None or task.max_crashes <= 1 or task.atomic:
        return 1
    most = [queue.batch, int(MESSAGE_S / mean_s) if mean_s > 0 else queue.batch]
    if queue.limit is not None:
        most.append(queue.limit // queue.capacity)
    if queue.slots is not None:
        most.append(queue.slots)
    return max(1, min(most))


def largest(queue: Queue, means: Means) -> int:
    """Of the tasks that were measured."""
    return max((size(queue, task, means) for task in means), default=1)


def measured(queues: Sequence[str]) -> dict[str, dict[str, float]]:
    """By queue and task: the mean time of the latest bodies. Those that failed too: what hangs
    until its limit keeps others waiting like any other. (In a batch theirs began with the claim.)
    """
    rows = fetch(
        "WITH lately AS MATERIALIZED (SELECT job_id,"
        " extract(epoch FROM finished_at - started_at) AS seconds"
        " FROM tasks_attempt WHERE outcome IN ('succeeded', 'failed', 'retry')"
        " ORDER BY id DESC LIMIT %s)"
        " SELECT queue, task, avg(seconds)::float8 FROM lately JOIN tasks_job j ON j.id = job_id"
        " WHERE j.id = ANY(ARRAY(SELECT job_id FROM lately)) AND queue = ANY(%s)"
        " GROUP BY queue, task",
        [ATTEMPTS, list(queues)],
    )
    found: dict[str, dict[str, float]] = {}
    for queue, task, seconds in rows:
        found.setdefault(queue, {})[task] = max(0.0, seconds)
    return found
