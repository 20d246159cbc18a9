"""No migration since the previous release hurts that release while it still runs."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import migrations, models
from django.db.migrations.state import ProjectState

from devtools.release import contracting, kept

# Written by people: what the check finds, and why it may stay.
REVIEWED = {
    "tasks.0005_ordering_lines: AddIndex job.tasks_job_in_line": "no ledger was in use before it",
    "tasks.0006_every_tenant: AddConstraint apiclient.tasks_apiclient_every_tenant_operates": (
        "a few rows, and the release before leaves every_tenant at its default, false"
    ),
}


def test_no_migration_since_the_previous_release_contracts_unseen() -> None:
    found = contracting.contracting(kept.read().migrations, kept.APPS)
    unseen = {what: why for what, why in found.items() if what not in REVIEWED}
    assert not unseen, "expand first, contract a release later (docs/migrations.md)"
    assert set(REVIEWED) <= set(found), "what is no longer found is no longer listed"


def job_before() -> ProjectState:
    state = ProjectState()
    fields: list[tuple[str, Any]] = [
        ("id", models.BigAutoField(primary_key=True)),
        ("note", models.CharField(max_length=10, null=True)),
        ("count", models.IntegerField(db_default=0)),
    ]
    migrations.CreateModel("Job", fields).state_forwards("tasks", state)
    return state


INDEX = models.Index(fields=["note"], name="of_note")
POSITIVE = models.CheckConstraint(condition=models.Q(count__gte=0), name="positive")


@pytest.mark.parametrize(
    ("operation", "why"),
    [
        (migrations.RemoveField("job", "note"), "still uses it"),
        (migrations.RenameField("job", "note", "text"), "still uses it"),
        (migrations.DeleteModel("Job"), "still uses it"),
        (migrations.RenameModel("Job", "Work"), "still uses it"),
        (migrations.AddField("job", "x", models.IntegerField(default=1)), "null or db_default"),
        (migrations.AlterField("job", "note", models.CharField(max_length=10)), "write NULL"),
        (migrations.AlterField("job", "note", models.TextField(null=True)), "another type"),
        (migrations.AlterField("job", "count", models.IntegerField()), "without it"),
        (migrations.AddIndex("job", INDEX), "AddIndexConcurrently"),
        (migrations.AddConstraint("job", POSITIVE), "must fit it"),
        (migrations.RunSQL("SELECT 1"), "a person"),
        (migrations.RunPython(migrations.RunPython.noop), "a person"),
    ],
)
def test_what_the_running_release_would_not_survive_is_found(operation: Any, why: str) -> None:
    [(what, said)] = contracting.look_at([operation], job_before(), "tasks")
    assert what.startswith(type(operation).__name__)
    assert re.search(why, said)


@pytest.mark.parametrize(
    "operation",
    [
        migrations.AddField("job", "x", models.IntegerField(null=True)),
        migrations.AddField("job", "x", models.IntegerField(db_default=1)),
        migrations.AlterField(
            "job", "note", models.CharField(max_length=10, null=True, help_text="?")
        ),
        contracting.AddIndexConcurrently("job", INDEX),
    ],
)
def test_what_expands_passes(operation: Any) -> None:
    assert not list(contracting.look_at([operation], job_before(), "tasks"))


def test_a_table_that_is_new_may_be_changed_in_any_way() -> None:
    new = migrations.CreateModel("Note", [("id", models.BigAutoField(primary_key=True))])
    index = migrations.AddIndex("note", models.Index(fields=["id"], name="of_id"))
    assert not list(contracting.look_at([new, index], job_before(), "tasks"))
