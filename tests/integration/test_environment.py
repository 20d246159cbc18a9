"""A process of one environment does not touch the ledger of another."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client

from devtools.child import ROOT
from tasks import environment
from tasks.environment import GUARD, ForeignLedger, owner, set_owner
from tasks.models import Job
from tests.broker import Corner
from tests.processes import Process, running, worker
from tests.processes import environment as child_environment

pytestmark = [pytest.mark.timeout(60), pytest.mark.django_db(transaction=True)]

OURS, THEIRS = "development", "production"


@pytest.fixture
def foreign() -> Iterator[None]:
    """The ledger is a restored dump of production."""
    set_owner(THEIRS)
    GUARD.satisfied = False
    yield
    GUARD.satisfied = True
    set_owner(OURS)


@pytest.fixture
def corner() -> Iterator[Corner]:
    corner = Corner()
    yield corner
    corner.clear()


def run(*argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *argv], cwd=ROOT, env=child_environment(env),
        capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip


def test_migrate_claims_a_ledger_for_its_environment() -> None:
    assert owner() == OURS
    set_owner("")
    environment.claim_ledger()
    assert owner() == OURS


def test_migrate_leaves_a_ledger_with_its_owner() -> None:
    set_owner(THEIRS)
    environment.claim_ledger()
    assert owner() == THEIRS
    set_owner(OURS)


@pytest.mark.usefixtures("foreign")
def test_a_foreign_ledger_is_as_good_as_away(client: Client) -> None:
    connection.close()
    with pytest.raises(ForeignLedger, match="belongs to the environment 'production'"):
        Job.objects.count()
    with pytest.raises(ForeignLedger):  # not only the first time
        Job.objects.count()
    assert client.get("/readyz").status_code == 503


@pytest.mark.usefixtures("foreign")
def test_a_relay_ends_with_both_names_and_a_cure() -> None:
    done = run("manage.py", "relay")
    assert done.returncode == 1
    assert "belongs to the environment 'production', and this process to 'development'" in (
        done.stderr
    )
    assert "ledger_environment --set development" in done.stderr


@pytest.mark.usefixtures("foreign")
def test_a_worker_ends_before_it_takes_anything(corner: Corner) -> None:
    with worker("default", env=corner.env, ready=False) as process:
        assert process.wait(within_s=30) == 1
        assert "belongs to the environment 'production'" in process.log


@pytest.mark.usefixtures("foreign")
def test_a_process_of_the_owner_starts(corner: Corner) -> None:
    env = child_environment({**corner.env, "ENVIRONMENT": THEIRS, "SECRET_KEY": "k" * 40})
    argv = [sys.executable, "manage.py", "relay"]
    with running(Process("relay", argv, env)) as process:
        process.wait_for("relay_started")


def test_a_copy_changes_hands() -> None:
    set_owner(THEIRS)
    done = run("manage.py", "ledger_environment")
    assert done.stdout == "It belongs to production.\n"
    done = run("manage.py", "ledger_environment", "--set", OURS)
    assert done.stdout == "It belonged to production and belongs to development now.\n"
    call_command("check")
    assert owner() == OURS
