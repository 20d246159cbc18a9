"""Which operations of a migration the release that still runs might not survive.

The migration is applied while that release works, so a change must leave its statements working
and may not lock a large table. What is found is either done in another way or looked at by a
person, who writes down why it may stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import connection
from django.db.migrations import operations as of
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.state import ProjectState

# Whatever these do, the release that runs knows nothing of it.
HARMLESS = (of.CreateModel, of.AlterModelOptions, of.AlterModelManagers, AddIndexConcurrently)
REMOVES = "the release that runs still uses it"
LOCKS = "it locks the table against writes while it looks at every row"
FOR_PEOPLE = "nobody but a person can tell what it does"
WHY: dict[type[of.base.Operation], str] = {
    of.RemoveField: REMOVES,
    of.RenameField: REMOVES,
    of.DeleteModel: REMOVES,
    of.RenameModel: REMOVES,
    of.AlterModelTable: REMOVES,
    of.RemoveIndex: REMOVES,
    RemoveIndexConcurrently: REMOVES,
    of.AddIndex: f"{LOCKS}: use AddIndexConcurrently",
    of.AddConstraint: f"{LOCKS}, and what the release that runs writes must fit it",
    of.RemoveConstraint: REMOVES,
}


def contracting(since: Iterable[tuple[str, str]], apps: Iterable[str]) -> dict[str, str]:
    """What is to be looked at in migrations that are not in ``since``, with the reason."""
    loader = MigrationLoader(None)
    known, found = set(since), {}
    for node in loader.graph.leaf_nodes():
        for app, name in loader.graph.forwards_plan(node):
            if app in apps and (app, name) not in known:
                state = loader.project_state((app, name), at_end=False)
                migration = loader.graph.nodes[app, name]
                for what, why in look_at(migration.operations, state, app):
                    found[f"{app}.{name}: {what}"] = why
    return found


def look_at(
    operations: Iterable[of.base.Operation], state: ProjectState, app: str
) -> Iterator[tuple[str, str]]:
    """``state``: before them. Tables that are new may be changed in any way."""
    new = set()
    for operation in operations:
        model = model_of(operation)
        if isinstance(operation, of.CreateModel):
            new.add(model)
        elif model not in new and (why := reason(operation, state, app, model)):
            yield described(operation), why
        operation.state_forwards(app, state)


def reason(operation: Any, state: ProjectState, app: str, model: str) -> str:
    """Empty: the release that runs does not notice."""
    if isinstance(operation, HARMLESS):
        return ""
    if isinstance(operation, of.AddField):
        return reason_of_new(operation.field)
    if isinstance(operation, of.AlterField):
        before = state.models[app, model].fields[operation.name]
        return reason_of_changed(before, operation.field)
    return WHY.get(type(operation), FOR_PEOPLE)


def reason_of_new(field: Any) -> str:
    if field.many_to_many or field.null or field.has_db_default():
        return ""
    return "the release that runs inserts rows without it: give it null or db_default"


def reason_of_changed(before: Any, after: Any) -> str:
    if before.null and not after.null:
        return f"{LOCKS}, and the release that runs may write NULL"
    if before.has_db_default() and not after.has_db_default():
        return "the release that runs inserts rows without it"
    if before.db_type(connection) != after.db_type(connection):
        return "another type may rewrite the table under a lock"
    return ""


def model_of(operation: Any) -> str:
    name = getattr(operation, "model_name", None) or getattr(operation, "name", "")
    return str(name).lower()


def described(operation: Any) -> str:
    """Short, and stable enough to be listed."""
    thing = getattr(operation, "index", None) or getattr(operation, "constraint", None)
    parts = (getattr(operation, "model_name", ""), getattr(thing or operation, "name", ""))
    names = ".".join(str(part) for part in parts if part)
    return f"{type(operation).__name__} {names}".strip()
