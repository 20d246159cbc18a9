"""References in docs/ name what there is in the code, no more and no less."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

from devtools import module_map
from tasks import errors
from tasks.enqueue import Enqueued, Item, enqueue, enqueue_many
from tasks.keys import MAX_KEY_LENGTH
from tasks.payload import MAX_PAYLOAD_BYTES
from tasks.representations import NewJob

DOCS = Path(__file__).resolve().parents[2] / "docs"
ENQUEUE = (DOCS / "enqueue.md").read_text()


def described(heading: str) -> dict[str, str]:
    """Of the first table under a heading: its names, each with its default as written."""
    table = ENQUEUE.partition(f"\n## {heading}\n")[2].partition("\n|---|")[2].partition("\n\n")[0]
    rows = (line.split("|") for line in table.splitlines() if line.startswith("| `"))
    return {cells[1].strip(" `"): cells[2].strip(" `") for cells in rows}


def parameters_of(function: Any) -> dict[str, str]:
    return {
        parameter.name: "" if parameter.default is parameter.empty else repr(parameter.default)
        for parameter in inspect.signature(function).parameters.values()
    }


def fields_of(item: type[Item]) -> dict[str, str]:
    return {
        field.name: repr(field.default) if field.default is not MISSING
        else "" if field.default_factory is MISSING else repr(field.default_factory())
        for field in fields(item)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("heading", "taken"),
    [
        ("enqueue", parameters_of(enqueue)),
        ("enqueue_many", parameters_of(enqueue_many)),
        ("Item", fields_of(Item)),
    ],
)
def test_what_enqueue_takes_is_described_with_its_default(
    heading: str, taken: Mapping[str, str]
) -> None:
    assert described(heading) == taken


def test_what_the_http_interface_takes_is_named() -> None:
    line = re.search(r"`POST /api/jobs` takes (.+?) in its body", ENQUEUE)
    assert line is not None
    assert re.findall(r"`(\w+)`", line[1]) == list(NewJob.model_fields)


def test_the_fields_of_the_answer_are_named() -> None:
    line = re.search(r"The answer is an `Enqueued`: (.+)", ENQUEUE)
    assert line is not None
    assert re.findall(r"`(\w+)`", line[1]) == [field.name for field in fields(Enqueued)]


def test_what_enqueue_raises_is_an_error_of_ours() -> None:
    table = ENQUEUE.partition("| it raises |")[2].partition("\n\n")[0]
    names = re.findall(r"^\| `(\w+)`", table, re.MULTILINE)
    assert len(names) == 6
    assert all(issubclass(getattr(errors, name), errors.TasksError) for name in names)


def test_the_bounds_are_those_of_the_code() -> None:
    assert f"1 to {MAX_KEY_LENGTH} visible" in ENQUEUE
    assert f"at most {MAX_PAYLOAD_BYTES // 1024} KiB as JSON" in ENQUEUE


def test_the_map_of_the_modules_is_that_of_the_layers() -> None:
    assert (DOCS / "modules.md").read_text() == module_map.module_map(), module_map.STALE


def test_every_module_of_the_engine_is_on_the_map_and_says_what_it_is() -> None:
    names = {path.stem for path in (DOCS.parent / "tasks").glob("*.py")} - {"__init__"}
    rows = re.findall(r"^\| \[(\w+)\]\(\S+\) \| (\S.+) \|$", module_map.module_map(), re.MULTILINE)
    assert names | {"management"} == {name for name, _ in rows}
