"""What a job may return, and what becomes of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given

from tasks.safe_result import MAX_RESULT_BYTES, safe_result
from tasks.strict_json import check_json, dumps, parse
from tests.samples import LINE, Address, Color, json_values


@given(json_values)
def test_a_json_result_is_stored_as_it_is(value: object) -> None:
    assert safe_result(value) == (dumps(value), "")


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (UUID(int=1), str(UUID(int=1))),
        (Decimal("1.10"), "1.10"),
        (datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01T00:00:00Z"),
        (Color.RED, "red"),
        ((1, {2}), [1, [2]]),
        (LINE, {"sku": str(UUID(int=1)), "price": "9.90", "note": "none"}),
        (Address("x", date(2026, 1, 1)), {"city": "x", "since": "2026-01-01", "tags": []}),
        ({"rows": [LINE.price]}, {"rows": ["9.90"]}),
    ],
)
def test_typed_results_need_no_note(value: object, stored: object) -> None:
    text, note = safe_result(value)
    assert (json.loads(text), note) == (stored, "")


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def endless() -> Iterator[int]:
    while True:
        yield 1


def cyclic() -> list[object]:
    cycle: list[object] = []
    cycle += [cycle, cycle]
    return cycle


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (float("nan"), None),
        ({"a": [float("inf"), 1]}, {"a": [None, 1]}),
        ({"a": "x\0y", "\0": 1}, {"a": r"x\u0000y", r"\u0000": 1}),
        ("\ud800", r"\ud800"),
        ({1: 2}, {"1": 2}),
        ({1: "a", "1": "b"}, {"1": "a", "1'": "b"}),
        ([range(3)], ["range(0, 3)"]),
        (b"\xff", r"b'\xff'"),
        pytest.param(10**5000, "<integer of 16610 bits>", id="huge"),
        ([LINE.model_copy(update={"note": "\0"})],
         [{"sku": str(UUID(int=1)), "price": "9.90", "note": r"\u0000"}]),
    ],
)  # fmt: skip
def test_a_result_json_cannot_hold_is_kept_in_a_safe_form_with_a_note(
    value: object, stored: object
) -> None:
    text, note = safe_result(value)
    assert json.loads(text) == stored
    assert note


def nested(times: int, depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value] * times
    return value


@pytest.mark.parametrize(
    "value",
    [
        endless(),
        cyclic(),
        nested(times=1, depth=500),
        nested(times=2, depth=60),
        object(),
        len,
        Unprintable(),
        {(1, "\0"): {"\ud800"}},
        "x" * 1_000_000,
        ['\0\\"' * 99_999],
        {str(i): "é" for i in range(99_999)},
    ],
    ids=lambda value: type(value).__name__,
)
def test_no_result_fails_grows_or_breaks_the_database(value: object) -> None:
    text, note = safe_result(value)
    assert note
    assert len(text.encode()) <= MAX_RESULT_BYTES
    check_json(parse(text.encode()))


@pytest.mark.parametrize("max_bytes", [2, 3, 50, 5000])
def test_a_large_result_keeps_its_beginning_within_the_bound(max_bytes: int) -> None:
    text, note = safe_result({"a": 'é"\\' * 9_999}, max_bytes)
    assert len(text.encode()) <= max_bytes
    assert '{"a":"é'.startswith(json.loads(text)[:7])
    assert str(max_bytes) in note
