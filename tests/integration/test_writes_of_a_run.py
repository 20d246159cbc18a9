"""What a body writes while it runs survives a connection that is lost under it."""

from __future__ import annotations

from types import SimpleNamespace

import psycopg
import pytest
from django.db import OperationalError, connection, transaction

from tasks import ledger
from tasks.ledger import Claim
from tasks.models import Job, Output, Step
from tasks.run import Run
from tasks.states import State
from tests.job_rows import job_row
from tests.processes import database_url

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def run() -> Run:
    job = job_row(State.RUNNING)
    claim = Claim(job.id, job.fence, job.task, job.queue, "", "k", {}, None, 0, 0, 0, None, 0.0, 1)
    return Run(claim, SimpleNamespace())


def cut_the_connection() -> None:
    """As a restart of the database does, in the middle of a body."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        pid = cursor.fetchone()[0]
    with psycopg.connect(database_url(), autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 2000)", [pid])


def test_each_of_them_comes_through_a_lost_connection(run: Run) -> None:
    def report() -> str:
        cut_the_connection()
        return "done"

    cut_the_connection()
    run.checkpoint({"part": 1})
    cut_the_connection()
    run.progress(1, 1)
    cut_the_connection()
    run.emit(1, "row")
    cut_the_connection()
    assert run.step("one", report) == "done"
    job = Job.objects.get()
    assert (job.checkpoint, job.progress["done"]) == ({"part": 1}, 1)
    assert Output.objects.count() == Step.objects.filter(done_at__isnull=False).count() == 1


def test_a_transaction_of_the_body_is_lost_with_its_connection(run: Run) -> None:
    def body() -> None:
        with transaction.atomic():
            cut_the_connection()
            run.checkpoint({"part": 1})

    with pytest.raises(OperationalError):
        body()
    assert Job.objects.get().checkpoint is None


def test_ending_a_step_again_is_no_lost_lease_for_the_run_that_ended_it(run: Run) -> None:
    job_id, fence = run.claim.id, run.fence
    ledger.begin_step(job_id, fence, "one")
    assert ledger.end_step(job_id, fence, "one", '"done"')
    assert ledger.end_step(job_id, fence, "one", '"done"')
    Job.objects.update(fence=fence + 1)
    assert not ledger.end_step(job_id, fence, "one", '"done"')
