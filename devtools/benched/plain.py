"""Bare Celery, as careful as it can be made by settings: acks_late, prefetch 1, no results.

celery -A devtools.benched.plain worker
"""

from __future__ import annotations

import os
from typing import Any

from celery import Celery

from devtools.benched import counting

QUEUE = "bench-plain"

app: Any = Celery("plain", broker=os.environ["BROKER_URL"])
app.conf.update(
    task_default_queue=QUEUE,
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    task_ignore_result=True,
    task_serializer="json",
    accept_content=["json"],
    broker_connection_retry_on_startup=True,
)


@app.task
def noop() -> None:
    counting.count()


@app.task
def stamped(sent_at: float) -> None:
    counting.record_pickup(sent_at)
