"""Runs jobs in this very process, through the same transitions as a worker.

For eager mode and tests: no broker, no relay, no worker; the ledger, the serialisation and
Celery's tracer are the real ones.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from celery import current_app
from celery.app.trace import build_tracer

from tasks import ledger

WORKER = "inline"


def run_job(job_id: UUID) -> bool:
    """Run one queued job now. False when it is not queued (a repeat, held or cancelled)."""
    dispatch_no = ledger.dispatch_here(job_id)
    if not dispatch_no:
        return False
    outcome = ledger.outcome_of(job_id)
    assert outcome is not None
    task = traced(current_app.tasks[outcome.task])
    task.__trace__(str(job_id), (), {}, request_for(job_id, task, dispatch_no))
    return True


def traced(task: Any) -> Any:
    if task.__trace__ is None:
        task.__trace__ = build_tracer(task.name, task, app=task.app)
    return task


def request_for(job_id: UUID, task: Any, dispatch_no: int) -> dict[str, Any]:
    """The request that a worker would have made of the message."""
    return {
        "id": str(job_id),
        "task": task.name,
        "dispatch_no": dispatch_no,
        "hostname": WORKER,
        "delivery_info": {"routing_key": task.queue or "default"},
        "is_eager": False,
    }
