"""What this process counts. Where it is read, and what the ledger adds: ``scrape.py``."""

from __future__ import annotations

from prometheus_client import Counter

ACCEPTED = Counter("tasks_accepted", "Jobs accepted.", ["queue", "task"])
REPEATED = Counter("tasks_repeated", "Calls answered with the existing job.", ["queue", "task"])
SETTLED = Counter("tasks_settled", "Runs that ended, by outcome.", ["queue", "task", "outcome"])
REFUSED = Counter("tasks_refused_writes", "Writes of a run that had lost its job.", ["operation"])


RESCUED = Counter("tasks_rescued", "Runs whose lease expired.", ["queue", "task"])


def accepted(queue: str, task: str) -> None:
    ACCEPTED.labels(queue, task).inc()


def repeated(queue: str, task: str) -> None:
    REPEATED.labels(queue, task).inc()


def settled(queue: str, task: str, outcome: str) -> None:
    SETTLED.labels(queue, task, outcome).inc()


def refused_write(operation: str) -> None:
    REFUSED.labels(operation).inc()


def rescued(queue: str, task: str) -> None:
    RESCUED.labels(queue, task).inc()
