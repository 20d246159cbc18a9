"""For the tests of your own tasks: run what was enqueued, in this process, without servers.

    pytest_plugins = ["tasks.testing"]          # in your conftest.py

    def test_an_order_is_captured(db, run_jobs):
        client.post("/orders/", ...)
        assert_enqueued(capture, order_id=7)
        [job] = run_jobs()
        assert job.state == "succeeded"

Arguments make the same way through JSON and the ledger as in production, and refuse the same
values. Everything happens in the transaction of the test. It needs pytest only for the fixture.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import F, Q, QuerySet

from tasks import inline, ledger, order
from tasks.enqueue import resolve
from tasks.models import Job
from tasks.payload import differing_fields, mask
from tasks.registry import task_of
from tasks.signature import signature_of
from tasks.states import State
from tasks.strict_json import dumps

LIMIT = 1000
SHOWN = 20  # jobs in a message


def run_jobs(
    *,
    until: datetime | timedelta | None = None,
    include_scheduled: bool = False,
    limit: int = LIMIT,
) -> list[Job]:
    """Run what is due, and what that enqueues, most important and oldest first.

    Returns the jobs that ran, as they are afterwards, in the order of their first run. What is
    due later stays queued, a retry with its delay too: ``until`` (a moment, or how far from now)
    runs what is due by then, ``include_scheduled`` everything. The clock does not move. Raises
    RuntimeError after ``limit`` runs: tasks that enqueue each other have no end.
    """
    horizon = datetime.max.replace(tzinfo=UTC) if include_scheduled else moment(until)
    ran: Counter[UUID] = Counter()
    while (job_id := next_job(horizon)) is not None:
        if ran.total() == limit:
            raise RuntimeError(f"still not done after {limit} runs:\n{most_frequent(ran)}")
        inline.run_job(job_id)
        ran[job_id] += 1
    jobs = Job.objects.in_bulk(list(ran))
    return [jobs[job_id] for job_id in ran]


def assert_enqueued(task: Any, **payload: Any) -> Job:
    """One job of ``task`` waits whose payload holds these values; that job.

    Values are given as to ``enqueue``: a UUID is compared as the text that is stored.
    """
    task = resolve(task)
    wanted = dumped(task, payload)
    waiting = list(unfinished())
    found = [job for job in waiting if job.task == task.name and holds(job.payload, wanted)]
    if found:
        return found[0]
    call = f"{task.name}({', '.join(f'{n}={dumps(v)}' for n, v in wanted.items())})"
    raise AssertionError(f"not enqueued: {call}\n{described(waiting, task.name, wanted)}")


try:
    import pytest
except ImportError:  # tests without pytest use the functions
    pass
else:

    @pytest.fixture(name="run_jobs")
    def run_jobs_fixture() -> Callable[..., list[Job]]:
        """The function ``tasks.testing.run_jobs``."""
        return run_jobs


# --- what to run next ---------------------------------------------------------------------


def moment(until: datetime | timedelta | None) -> datetime | None:
    return datetime.now(UTC) + until if isinstance(until, timedelta) else until


def next_job(horizon: datetime | None) -> UUID | None:
    """As the relay would choose, over all queues; then, up to the horizon, by due time."""
    ledger.stage_due(LIMIT)
    ledger.expire(LIMIT)
    order.sweep_keys(order.NO_KEY, LIMIT)
    waiting = Job.objects.filter(state=State.QUEUED, hold_reason="")
    due = waiting.filter(due=True).order_by(F("priority").desc(), "seq")
    found = due.values_list("id", flat=True).first()
    if found is None and horizon is not None:
        later = waiting.filter(run_at__lte=horizon).order_by("run_at", "seq")
        found = later.values_list("id", flat=True).first()
    return found


def most_frequent(ran: Counter[UUID]) -> str:
    names = dict(Job.objects.filter(id__in=ran).values_list("id", "task"))
    counts: Counter[str] = Counter()
    for job_id, times in ran.items():
        counts[names[job_id]] += times
    return "\n".join(f"  {times} x {name}" for name, times in counts.most_common(5))


# --- what is there ------------------------------------------------------------------------


def unfinished() -> QuerySet[Job]:
    return Job.objects.filter(~Q(state__in=[State.SUCCEEDED, State.FAILED, State.CANCELLED]))


def dumped(task: Any, payload: dict[str, Any]) -> dict[str, Any]:
    """The stored form of some of the arguments: those that are missing do not matter here."""
    signature = signature_of(task)
    return {name: signature.dump_value(name, value) for name, value in payload.items()}


def holds(payload: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return not differing_fields({n: payload[n] for n in wanted if n in payload}, wanted)


def described(waiting: list[Job], task_name: str, wanted: dict[str, Any]) -> str:
    """What is enqueued instead; of the same task first, with the fields that differ."""
    if not waiting:
        return "nothing is enqueued"
    ordered = sorted(waiting, key=lambda job: (job.task != task_name, job.seq))
    lines = [
        f"  {job.task}({dumps(shown(job))})" + difference(job, task_name, wanted)
        for job in ordered[:SHOWN]
    ]
    more = [f"  and {len(waiting) - SHOWN} more"] if len(waiting) > SHOWN else []
    return "\n".join(["enqueued are:", *lines, *more])


def shown(job: Job) -> dict[str, Any]:
    return mask(job.payload, getattr(task_of(job.task), "sensitive", ()))


def difference(job: Job, task_name: str, wanted: dict[str, Any]) -> str:
    if job.task != task_name:
        return ""
    fields = differing_fields({n: job.payload[n] for n in wanted if n in job.payload}, wanted)
    return f"  differs in: {', '.join(fields)}"
