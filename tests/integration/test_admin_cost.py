"""What a page of the job list costs when the table is large."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from project.models import User
from tasks.job_list import KeysetChangeList

pytestmark = pytest.mark.django_db

LIST = "/admin/tasks/job/"


@pytest.fixture(scope="module")
def many_jobs(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """100,000 jobs of 100 tenants; all succeeded but for one in a thousand."""
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO tasks_job (id, task, queue, tenant, idempotency_key, fingerprint,"
            " payload, state, created_at, started_at, finished_at, failure, dead_letter)"
            " SELECT (lpad(to_hex(1700000000000 + n * 1000), 12, '0') || '7'"
            " || substr(md5(n::text), 1, 3) || '8' || substr(md5(n::text), 4, 15))::uuid,"
            " 't.trace', 'default', 'tenant-' || n %% 100, 'order:' || n, 'f', '{}',"
            " CASE WHEN failed THEN 'failed' ELSE 'succeeded' END, t, t, t,"
            " CASE WHEN failed THEN 'error' ELSE '' END, failed"
            " FROM (SELECT n, to_timestamp(1700000000 + n) t, n %% 1000 = 0 failed"
            " FROM generate_series(1, 100000) n) given",
            [],
        )
        cursor.execute("ANALYZE tasks_job")
    yield
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute("TRUNCATE tasks_job CASCADE")


def plan_of(sql: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {sql}")
        return "\n".join(line for (line,) in cursor.fetchall())


@pytest.mark.parametrize(
    "query",
    [
        "", "?state=running", "?state=dispatched", "?state=queued", "?state=succeeded",
        "?state=failed", "?state=cancelled", "?dead_letter=1", "?queue=payments", "?task=t.slow",
        "?queue=payments&state=failed", "?tenant=tenant-7", "?tenant=nobody",
        "?tenant=tenant-7&state=cancelled", "?q=order:4711", "?q=nothing",
        "?state=on+hold", "?state=failed&tenant=tenant-7", "?upto=50000",
        "?after=50000&state=cancelled", "?upto=50000&state=failed",
    ],
)  # fmt: skip
def test_no_page_counts_or_reads_the_table_from_end_to_end(
    client: Client, many_jobs: None, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    client.force_login(User.objects.create_superuser("ada"))
    monkeypatch.setattr(KeysetChangeList, "window_size", 5_000)
    with CaptureQueriesContext(connection) as queries:
        assert client.get(LIST + query).status_code == 200
    asked = [q["sql"] for q in queries if "tasks_job" in q["sql"]]
    assert asked
    for sql in asked:
        assert "COUNT(" not in sql.upper()
        assert "Seq Scan on tasks_job" not in plan_of(sql)
