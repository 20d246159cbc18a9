"""Whether the code at hand can run what waits: asked before a deploy, of the code to be deployed.

The database groups every unfinished job by its task and the shape of its payload; of each shape
some payloads are bound to the signature of the task. Nothing here holds more than a few of them
at once, and nothing tells their values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from django.db import connection, transaction

from tasks import fleet
from tasks.errors import InvalidPayload
from tasks.registry import queues_of_tasks, task_of
from tasks.signature import signature_of
from tasks.sql import fetch
from tasks.wiring import topology

# Payloads of one shape that are bound: the oldest and the newest of each of so many classes.
# Two jobs of a shape differ in what a type says nothing of: a text that is no UUID, a list of
# other things.
CLASSES = 16
# Payloads in memory at once.
PAYLOADS_AT_ONCE = 8
# Unfinished jobs as disjoint parts, so that a ledger full of finished ones is not read.
PARTS = (
    "state = 'queued' AND due AND hold_reason = ''",
    "state = 'queued' AND NOT due",
    "state = 'queued' AND hold_reason <> '' AND due",
    "state = 'dispatched'",
    "state = 'running'",
)


@dataclass(frozen=True)
class Shape:
    """Jobs of one task whose payloads have the same parameters of the same JSON types."""

    task: str
    shape: str
    jobs: int
    samples: Sequence[int]  # by seq


@dataclass(frozen=True)
class Misfit:
    """Jobs that would be held. ``refused`` of ``sampled`` payloads had this problem."""

    task: str
    shape: str
    jobs: int
    problem: str
    refused: int
    sampled: int


@dataclass
class Report:
    jobs: int
    shapes: int
    misfits: list[Misfit]


# Lines of one report: whoever has more has read enough.
MISFITS_MAX = 1000


def check(queue: str | None = None) -> Report:
    """Bind what waits (in one queue, or in all) to the tasks of this code."""
    report = Report(0, 0, [])
    report.misfits.extend(unserved(queue))
    with transaction.atomic():  # a cursor of the server lives in a transaction
        for shape in waiting_shapes(queue):
            report.jobs += shape.jobs
            report.shapes += 1
            if len(report.misfits) < MISFITS_MAX:
                report.misfits.extend(misfits_of(shape))
    return report


def unserved(queue: str | None) -> list[Misfit]:
    """Jobs in a queue that no worker takes after the rollout, by queue and task.

    A queue that the topology does not declare gets no worker from the manifests. Somebody may have
    started one by hand, and then a task of this code names the queue; a worker alone says nothing,
    for one of the old release still takes what this code has renamed or removed.
    """
    meant = set(fleet.slots()) & set(queues_of_tasks())
    declared = sorted({*topology().queues, *meant})
    rows = fetch(
        f"SELECT queue, task, count(*) FROM tasks_job WHERE ({' OR '.join(PARTS)})"  # noqa: S608
        " AND queue <> ALL(%s) AND (%s::text IS NULL OR queue = %s)"
        " GROUP BY queue, task ORDER BY queue, task LIMIT %s",
        [declared, queue, queue, MISFITS_MAX],
    )
    return [Misfit(task, "any", jobs, UNDECLARED.format(name), 0, 0) for name, task, jobs in rows]


UNDECLARED = (
    "queue {} is not declared: no worker takes it. Keep the queue in the topology for one release"
)


def waiting_shapes(queue: str | None) -> Iterator[Shape]:
    """By task and shape. One statement, so a job that moves meanwhile is seen once."""
    only = "" if queue is None else " AND queue = %s"
    columns = f"task, seq, {SHAPE} AS shape"
    parts = " UNION ALL ".join(
        f"SELECT {columns} FROM tasks_job WHERE {part}{only}"  # noqa: S608  (constants above)
        for part in PARTS
    )
    with connection.chunked_cursor() as cursor:
        cursor.execute(
            "SELECT task, shape, count(*), min(seq), max(seq)"  # noqa: S608
            f" FROM ({parts}) AS waiting GROUP BY task, shape, seq %% {CLASSES}"
            " ORDER BY task, shape",
            [queue] * (0 if queue is None else len(PARTS)),
        )
        for (task, shape), rows in groupby(cursor, key=lambda row: (row[0], row[1])):
            counts, seqs = 0, set[int]()
            for _, _, jobs, oldest, newest in rows:
                counts += jobs
                seqs |= {oldest, newest}
            yield Shape(task, shape, counts, sorted(seqs))


# Parameters and their JSON types, in the order of their names: ``amount:string, order_id:number``.
SHAPE = (
    "(SELECT CASE WHEN length(s) > 300 THEN left(s, 260) || '… ' || md5(s) ELSE s END FROM ("
    " SELECT coalesce(string_agg(key || ':' || json_typeof(value), ', ' ORDER BY key), '') AS s"
    " FROM json_each(payload)) AS parameters)"
)


def misfits_of(shape: Shape) -> list[Misfit]:
    """One per distinct problem. Nothing runs here but the checks of the signature."""
    task = task_of(shape.task)
    problem = "" if getattr(task, "is_ledger_task", False) else problem_of_no_task(task)
    if problem:
        return [Misfit(shape.task, shape.shape, shape.jobs, problem, 0, 0)]
    found: dict[str, int] = {}
    sampled = 0
    for payload in payloads(shape.samples):
        sampled += 1
        problem = misfit(task, payload)
        if problem:
            found[problem] = found.get(problem, 0) + 1
    return [
        Misfit(shape.task, shape.shape, shape.jobs, problem, refused, sampled)
        for problem, refused in found.items()
    ]


def problem_of_no_task(task: Any) -> str:
    return "task unknown" if task is None else "the task is no LedgerTask"


def misfit(task: Any, payload: Any) -> str:
    """Why the payload does not fit, empty when it does."""
    try:
        signature_of(task).load(payload)
    except InvalidPayload as exc:
        return str(exc)
    return ""


def payloads(seqs: Sequence[int]) -> Iterator[Any]:
    """Those of the jobs that are still there."""
    for start in range(0, len(seqs), PAYLOADS_AT_ONCE):
        some = list(seqs[start : start + PAYLOADS_AT_ONCE])
        for (payload,) in fetch("SELECT payload FROM tasks_job WHERE seq = ANY(%s)", [some]):
            yield payload
