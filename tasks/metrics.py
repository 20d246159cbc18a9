"""What this process counts. Where it is read, and what the ledger adds: ``scrape.py``."""

from __future__ import annotations

from functools import cache

from prometheus_client import Counter

ACCEPTED = Counter("tasks_accepted", "Jobs accepted.", ["queue", "task"])
REPEATED = Counter("tasks_repeated", "Calls answered with the existing job.", ["queue", "task"])
SETTLED = Counter("tasks_settled", "Runs that ended, by outcome.", ["queue", "task", "outcome"])
REFUSED = Counter("tasks_refused_writes", "Writes of a run that had lost its job.", ["operation"])
RESCUED = Counter("tasks_rescued", "Runs whose lease expired.", ["queue", "task"])
PRUNED = Counter("tasks_pruned", "Jobs deleted after their retention.")
REJECTED = Counter("tasks_rejected", "Jobs not accepted.", ["queue", "tenant", "reason"])

# Tenants with a series of their own. Any more of them share one, or a crowd of tenants would fill
# the memory of this process and of whoever scrapes it.
TENANTS_MAX = 100
OTHER_TENANTS = "other"
_tenants: set[str] = set()


def accepted(queue: str, task: str) -> None:
    accepted_series(queue, task).inc()


@cache
def accepted_series(queue: str, task: str) -> Counter:
    """Looked up once: for thousands of jobs a second it is felt."""
    return ACCEPTED.labels(queue, task)


def repeated(queue: str, task: str) -> None:
    REPEATED.labels(queue, task).inc()


def rejected(queue: str, tenant: str, reason: str) -> None:
    REJECTED.labels(queue, tenant_label(tenant), reason).inc()


def tenant_label(tenant: str) -> str:
    """The first ``TENANTS_MAX`` by name."""
    if tenant not in _tenants and len(_tenants) < TENANTS_MAX:
        _tenants.add(tenant)
    return tenant if tenant in _tenants else OTHER_TENANTS


def settled(queue: str, task: str, outcome: str) -> None:
    SETTLED.labels(queue, task, outcome).inc()


def refused_write(operation: str) -> None:
    REFUSED.labels(operation).inc()


def rescued(queue: str, task: str) -> None:
    RESCUED.labels(queue, task).inc()


def pruned(jobs: int) -> None:
    PRUNED.inc(jobs)
