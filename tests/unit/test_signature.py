"""What the parameters of a task make of its payload."""
# Tasks without annotations are a subject of these tests.
# mypy: disable-error-code="no-untyped-def, empty-body, assignment"

from __future__ import annotations

import functools
from typing import Annotated, Any
from uuid import UUID

import pytest
from celery import shared_task
from pydantic import AfterValidator

from tasks.signature import signature_of
from tests.samples import SECRET, Customer, Line, app, refusal, signature, taking


def capture(order_id: int, card: str, note: str = "none", *, fast: bool = False) -> None: ...


def test_a_call_becomes_a_payload_by_name_without_defaults() -> None:
    bound = signature(capture)
    assert bound.bind((7,), {"card": "x"}) == {"order_id": 7, "card": "x"}
    assert bound.bind((7, "x", "n"), {"fast": True}) == {
        "order_id": 7, "card": "x", "note": "n", "fast": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("args", "kwargs", "path"),
    [
        ((), {"order_id": 7}, "$.card"),
        ((7, "x"), {"crad": SECRET}, "$.crad"),
        ((7, "x"), {"card": SECRET}, "$.card"),
        ((7, "x", "n", SECRET), {}, "$"),
    ],
)
def test_a_call_that_does_not_fit_names_the_parameter(
    args: tuple[object, ...], kwargs: dict[str, object], path: str
) -> None:
    error = refusal(lambda: signature(capture).bind(args, kwargs))
    assert (error.path, error.malformed) == (path, False)


@pytest.mark.parametrize("not_an_object", [[], "x", None, 3])
def test_a_payload_is_an_object(not_an_object: Any) -> None:
    assert refusal(lambda: signature(capture).dump(not_an_object)).path == "$"


@pytest.mark.parametrize("key", [1, (1, 2), None])
def test_a_parameter_name_is_text_also_with_open_names(key: Any) -> None:
    def open_task(**rest): ...

    for function in (capture, open_task):
        there = signature(function)
        refusal(functools.partial(there.dump, {"order_id": 1, "card": "", key: 1}))


def test_a_bound_task_has_no_self_parameter() -> None:
    def bound(self, order_id: int): ...

    assert signature(bound, bind=True).names == ("order_id",)
    retried = signature(bound, bind=True, name="retried", autoretry_for=(OSError,))
    assert retried.bind((7,), {}) == {"order_id": 7}


def test_a_class_based_task_is_read_from_its_run_method() -> None:
    class Old(app.Task):  # type: ignore[misc, name-defined]
        name = "old"

        def run(self, order_id: UUID): ...

    there = signature_of(app.register_task(Old()))
    assert there.load({"order_id": str(UUID(int=1))}) == {"order_id": UUID(int=1)}


def test_a_decorated_function_is_read_through_wraps() -> None:
    @functools.wraps(capture)
    def wrapper(*args, **kwargs): ...

    assert signature(wrapper).names == ("order_id", "card", "note", "fast")


def test_a_shared_task_is_read_through_its_proxy() -> None:
    task = shared_task(name="shared")(capture)
    assert signature_of(task).names[0] == "order_id"
    assert signature_of(task) is signature_of(task)


def test_the_signature_is_built_once_per_task() -> None:
    task = app.task(name="once")(capture)
    assert signature_of(task) is signature_of(task)


@pytest.mark.parametrize("name", ["star", "only"])
def test_parameters_without_a_name_are_refused_with_the_remedy(name: str) -> None:
    def star(*ids): ...
    def only(ids, /): ...

    error = refusal(lambda: signature({"star": star, "only": only}[name]))
    assert "ids" in error.message
    assert "one list" in error.message


def test_open_names_are_accepted_and_checked_by_their_annotation() -> None:
    def plain(order_id: int, **rest): ...
    def typed(**ids: UUID): ...

    assert signature(plain).dump({"order_id": 1, "x": [1]}) == {"order_id": 1, "x": [1]}
    dumped = signature(typed).dump({"a": UUID(int=1)})
    assert signature(typed).load(dumped) == {"a": UUID(int=1)}
    assert refusal(lambda: signature(typed).dump({"b": SECRET})).path == "$.b"


def test_defaults_are_not_stored() -> None:
    assert signature(capture).dump({"order_id": 1, "card": ""}) == {"order_id": 1, "card": ""}


def test_a_stored_payload_that_no_longer_fits_is_refused_when_loaded() -> None:
    def newer(order_id: UUID, currency: str): ...

    for stored in ({"order_id": 7, "currency": "EUR"}, {"order_id": str(UUID(int=1))}):
        refusal(functools.partial(signature(newer).load, stored))
    refusal(lambda: signature(capture).load({"order_id": 1, "card": "", "added_later": 1}))


def test_a_signature_has_a_json_schema() -> None:
    def task(order_id: UUID, lines: list[Line], odd: Customer, note: str = "x", when=None): ...

    schema = signature(task).schema()
    assert schema["properties"]["order_id"] == {"type": "string", "format": "uuid"}
    assert schema["properties"]["note"] == {"type": "string", "default": "x"}
    assert schema["properties"]["odd"] == {}
    assert schema["properties"]["when"] == {"default": None}
    assert "Line" in schema["$defs"]
    assert schema["required"] == ["order_id", "lines", "odd"]
    assert schema["additionalProperties"] is False


def test_a_check_of_the_task_that_breaks_is_a_misfit_and_its_text_is_not_told() -> None:
    def broken(value: int) -> int:
        raise KeyError(SECRET)

    checked = taking(Annotated[int, AfterValidator(broken)])
    refused = refusal(lambda: checked.load({"value": 7}))
    assert refused.path == "$.value"
    assert "its check raised KeyError" in refused.message
