"""What JSON is accepted from the wire and from Python, and how it is written."""

from __future__ import annotations

import sys
from datetime import date
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given

from tasks.strict_json import check_json, dumps, parse
from tests.samples import HUGE, Color, Customer, json_objects, json_values, refusal

# From the wire


@given(json_objects)
def test_any_json_object_survives_unchanged_and_in_order(value: dict[str, object]) -> None:
    back = parse(dumps(value).encode())
    assert back == value
    assert dumps(back) == dumps(value)


@given(json_values)
def test_what_check_json_accepts_the_strict_parser_accepts(value: object) -> None:
    check_json(value)
    parse(dumps(value).encode())


@pytest.mark.parametrize(
    "value", [2**53 + 1, -(2**64), 10**4299, -(10**4300) + 1], ids=int.bit_length
)
def test_integers_of_any_allowed_size_survive_the_wire(value: int) -> None:
    assert parse(dumps([value]).encode()) == [value]


def test_text_beyond_the_basic_plane_is_stored_as_itself() -> None:
    assert dumps({"a": "😀 ü"}) == '{"a":"😀 ü"}'
    assert parse(rb'"\ud83d\ude00"') == "😀"


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        (rb'{"a": "x\u0000y"}', "$.a"),
        (rb'{"a": {"k\u0000": 1}}', r'$.a["k\u0000"]'),
        (rb'{"a": [1, "\u0000"]}', "$.a[1]"),
        (b'{"items": [{}, {}, {"price": NaN}]}', "$.items[2].price"),
        (b'{"a": -Infinity}', "$.a"),
        (b"[Infinity]", "$[0]"),
        (b'{"a": 1e400}', "$.a"),
        (b'{"a": -1e400}', "$.a"),
        (b'{"a": {"b": 1, "c": 2, "b": 1}}', "$.a.b"),
        (b'{"a": 1, "a": 2}', "$.a"),
        (rb'{"a": "\ud800"}', "$.a"),
        (rb'{"\udc00": 1}', r'$["\udc00"]'),
        (b'{"a": [' + b"9" * 4301 + b"]}", "$.a[0]"),
        (b'{"a": -' + b"9" * 4301 + b"}", "$.a"),
        (b'{"odd name": NaN}', '$["odd name"]'),
    ],
)
def test_the_strict_parser_names_the_place(raw: bytes, path: str) -> None:
    error = refusal(lambda: parse(raw))
    assert error.path == path
    assert error.malformed


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"{'a': 1}",
        b'{"a": 1} x',
        b'{"a": hunter2}',
        b'{"a": "hunter2',
        b'{"a": "\x00"}',
        b"\xef\xbb\xbf{}",
        b'{"a": "\xff"}',
        b'{"a": "\xed\xa0\x80"}',
        '{"a": 1}'.encode("utf-16"),
        '{"a": 1}'.encode("utf-32-le"),
        b"[" * 101 + b"]" * 101,
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b"9" * 300_000,
    ],
    ids=lambda raw: repr(raw[:12]),
)
def test_what_is_not_strict_json_is_refused_as_malformed(raw: bytes) -> None:
    assert refusal(lambda: parse(raw)).malformed


def test_a_hundred_levels_are_allowed() -> None:
    assert parse(b"[" * 100 + b"]" * 100)


def test_a_long_integer_is_refused_whatever_the_limit_of_the_interpreter() -> None:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        assert refusal(lambda: parse(b"9" * 4301)).malformed
        assert parse(b"9" * 4300) == 10**4300 - 1
    finally:
        sys.set_int_max_str_digits(before)


# From Python


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": float("nan")}, "$.a"),
        ({"a": [float("inf")]}, "$.a[0]"),
        ({"a": "x\0y"}, "$.a"),
        ({"a": {"\0": 1}}, r'$.a["\u0000"]'),
        ({"a": "\udfff"}, "$.a"),
        ({"a": HUGE}, "$.a"),
    ],
)
def test_values_nobody_can_store_are_malformed(value: object, path: str) -> None:
    error = refusal(lambda: check_json(value))
    assert (error.path, error.malformed) == (path, True)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({1: 2}, "$"),
        ({"a": {1: "a", "1": "b"}}, "$.a"),
        ({"a": {None: 1}}, "$.a"),
        ({"a": (1, 2)}, "$.a"),
        ({"a": [{1, 2}]}, "$.a[0]"),
        ({"a": b"x"}, "$.a"),
        ({"a": UUID(int=1)}, "$.a"),
        ({"a": date(2026, 1, 1)}, "$.a"),
        ({"a": Decimal("1.0")}, "$.a"),
        ({"a": Color.RED}, "$.a"),
        ({"a": Customer()}, "$.a"),
    ],
)
def test_values_that_are_no_json_are_refused_with_the_hint_to_annotate(
    value: object, path: str
) -> None:
    error = refusal(lambda: check_json(value))
    assert (error.path, error.malformed) == (path, False)
    assert "annotate" in error.message


def test_a_cycle_is_an_error_of_bounded_length() -> None:
    cycle: dict[str, object] = {}
    cycle["self"] = [cycle, cycle]
    error = refusal(lambda: check_json(cycle))
    assert error.malformed
    assert len(str(error)) < 400


def test_a_path_starts_where_the_caller_says() -> None:
    assert refusal(lambda: check_json([0, "\0"], path="$.data")).path == "$.data[1]"
