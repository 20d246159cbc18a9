"""Idempotency keys: what is one, and that derived keys never name two intents."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks import keys
from tasks.errors import InvalidKey, InvalidPayload

SEPARATORS = st.text("ab:-%/._ é😀", min_size=1, max_size=6)


class Kind(StrEnum):
    REFUND = "refund"


class Level(Enum):
    HIGH = 3


@pytest.mark.parametrize("key", ["x", "x" * 255, "capture:7", "!~", "Case", "case"])
def test_visible_ascii_up_to_255_characters_is_a_key(key: str) -> None:
    assert keys.check_key(key) == key


@pytest.mark.parametrize("length", [0, 256, 4096])
def test_the_length_is_limited(length: int) -> None:
    with pytest.raises(InvalidKey, match=f"1-255 visible ASCII characters; this one has {length}"):
        keys.check_key("x" * length)


@pytest.mark.parametrize(
    "key",
    [" ", "   ", "a b", "a\n", "\0", "\x7f", "é", "😀" * 255, "\ud800", None, 7, b"x", True],
)
def test_anything_else_is_refused_naming_the_limit(key: object) -> None:
    with pytest.raises(InvalidKey, match="1-255 visible ASCII"):
        keys.check_key(key)


def test_a_refusal_counts_but_never_echoes() -> None:
    with pytest.raises(InvalidKey) as too_long:
        keys.check_key("secret" * 700)
    with pytest.raises(InvalidKey) as bad:
        keys.check_key("secret key")
    assert "4200" in str(too_long.value)
    assert "character 7 of 10" in str(bad.value)
    assert "secret" not in str(too_long.value) + str(bad.value)


def test_fresh_keys_are_valid_and_differ() -> None:
    assert len({keys.check_key(keys.fresh_key()) for _ in range(1000)}) == 1000


# Keys of parts


@pytest.mark.parametrize(
    ("parts", "key"),
    [
        (("invoice", 7), "invoice:7"),
        (("a:b", "c"), "a%3Ab:c"),
        (("a", "b:c"), "a:b%3Ac"),
        (("100%",), "100%25"),
        (("a b", "é"), "a%20b:%C3%A9"),
        ((Kind.REFUND, Level.HIGH, True), "refund:3:true"),
        ((UUID(int=1), Decimal("1.10")), "00000000-0000-0000-0000-000000000001:1.10"),
        ((date(2026, 1, 2),), "2026-01-02"),
        ((datetime(2026, 1, 2, tzinfo=UTC),), "2026-01-02T00%3A00%3A00+00%3A00"),
    ],
)
def test_parts_are_joined_readably(parts: tuple[object, ...], key: str) -> None:
    assert keys.idempotency_key(*parts) == key


@given(st.lists(SEPARATORS, min_size=1, max_size=4), st.lists(SEPARATORS, min_size=1, max_size=4))
def test_other_parts_are_another_key(a: list[str], b: list[str]) -> None:
    assert (keys.idempotency_key(*a) == keys.idempotency_key(*b)) == (a == b)


@given(st.lists(st.text(min_size=1), min_size=1))
def test_every_derived_key_is_a_valid_key(parts: list[str]) -> None:
    keys.check_key(keys.idempotency_key(*parts))


def test_long_keys_keep_their_beginning_and_differ_by_their_end() -> None:
    a, b = (keys.idempotency_key("import", "x" * 5000 + end) for end in "ab")
    assert len(a) == len(b) == 255
    assert a.startswith("import:xxx")
    assert a != b
    assert keys.idempotency_key(*a.split(":")) != a


@pytest.mark.parametrize(
    "parts", [(), ("",), ("a", None), (object(),), ([1],), (b"x",), ({"a": 1},)]
)
def test_parts_that_identify_nothing_are_refused(parts: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidKey):
        keys.idempotency_key(*parts)


# Keys of content


def test_the_same_content_has_the_same_key_in_any_order() -> None:
    one = keys.content_key("t", {"a": 1, "b": 2}, prefix="nightly")
    assert one == keys.content_key("t", {"b": 2, "a": 1}, prefix="nightly")
    assert one.startswith("nightly:")
    assert one != keys.content_key("u", {"a": 1, "b": 2}, prefix="nightly")
    assert one != keys.content_key("t", {"a": 1.0, "b": 2}, prefix="nightly")
    assert keys.check_key(keys.content_key("t", {}))


def test_a_bad_prefix_is_refused() -> None:
    with pytest.raises(InvalidKey):
        keys.content_key("t", {}, prefix="a b")


# Keys from a template


@pytest.mark.parametrize(
    ("template", "payload", "key"),
    [
        ("capture:{order_id}", {"order_id": 7, "card": "x"}, "capture:7"),
        ("{a}:{b}", {"a": "x:y", "b": "z"}, "x%3Ay:z"),
        ("{a}:{b}", {"a": "x", "b": "y:z"}, "x:y%3Az"),
        ("{a}-{b}", {"a": "x-y", "b": "z:1"}, "x%2Dy-z:1"),
        ("t/{order.id}/{items[1]}", {"order": {"id": 7}, "items": [0, "b"]}, "t/7/b"),
        ("x:{id}", {"id": "8f14-e45f"}, "x:8f14-e45f"),
        ("x:{flag}:{n}", {"flag": True, "n": 0}, "x:true:0"),
        ("x:{ratio}", {"ratio": 1.5}, "x:1.5"),
        ("x:{name}", {"name": "é %"}, "x:%C3%A9%20%25"),
        ("{{x}}:{id}", {"id": 1}, "{x}:1"),
    ],
)
def test_a_template_is_filled_from_the_payload(
    template: str, payload: dict[str, object], key: str
) -> None:
    assert keys.key_from_template(template, payload, "t") == key


@pytest.mark.parametrize("template", ["{a}:{b}", "x{a}-{b}y", "{a}x:x{b}", "{a}_{b}", "{a}::{b}"])
@given(values=st.tuples(SEPARATORS, SEPARATORS), others=st.tuples(SEPARATORS, SEPARATORS))
def test_other_values_are_another_key(
    template: str, values: tuple[str, str], others: tuple[str, str]
) -> None:
    one, other = (
        keys.key_from_template(template, dict(zip("ab", pair, strict=True)), "t")
        for pair in (values, others)
    )
    assert keys.check_key(one)
    assert (one == other) == (values == others)


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        ({}, "$.order.id"),
        ({"order": None}, "$.order.id"),
        ({"order": {}}, "$.order.id"),
        ({"order": {"id": None}}, "$.order.id"),
        ({"order": {"id": ""}}, "$.order.id"),
        ({"order": {"id": ["secret"]}}, "$.order.id"),
        ({"order": {"id": {}}}, "$.order.id"),
        ({"order": "secret"}, "$.order.id"),
        ({"order": {"id": 1}}, "$.items[0]"),
        ({"order": {"id": 1}, "items": []}, "$.items[0]"),
        ({"order": {"id": 1}, "items": {"0": 1}}, "$.items[0]"),
    ],
)
def test_a_key_is_never_made_of_nothing(payload: dict[str, object], path: str) -> None:
    with pytest.raises(InvalidPayload) as caught:
        keys.key_from_template("{order.id}:{items[0]}", payload, "orders.capture")
    assert caught.value.path == path
    assert not caught.value.malformed
    assert "orders.capture" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("field", ["{a.__class__}", "{a.real}", "{a.__init__.__globals__}"])
def test_attributes_of_objects_are_out_of_reach(field: str) -> None:
    with pytest.raises(InvalidPayload):
        keys.key_from_template(field, {"a": 7}, "t")


def test_a_long_value_still_gives_a_valid_key() -> None:
    a, b = (keys.key_from_template("x:{a}", {"a": "é" * 999 + end}, "t") for end in "ab")
    assert keys.check_key(a) != keys.check_key(b)


@pytest.mark.parametrize(
    "template",
    [
        "",
        "constant",
        "{}",
        "{0}",
        "{a!r}",
        "{a:>10}",
        "{a",
        "a}",
        "{a}{b}",
        "{a}x{b}",
        "{a[x]}",
        "{a[-1]}",
        "{a.}",
        "{a b}",
        "{é}",
        "x y:{a}",
        "é:{a}",
        "{a}%{b}",
        "{other}",
        "{other.a}",
    ],
)
def test_a_template_that_cannot_work_is_refused_when_declared(template: str) -> None:
    with pytest.raises(InvalidKey, match="key template"):
        keys.check_template(template, ("a", "b", "items"))


@pytest.mark.parametrize("template", ["{a}", "x:{a}:{b}", "{a.b.c}/{items[0].id}", "{{{a}}}"])
def test_a_template_of_parameters_is_fine(template: str) -> None:
    keys.check_template(template, ("a", "b", "items"))


# Keys of a window


def window(now_s: float, tenant: str = "acme", **payload: object) -> tuple[str, str]:
    return keys.window_keys("t", tenant, payload or {"a": 1}, window_s=10, now_s=now_s)


@given(st.floats(0, 2e9), st.floats(0, 9.99))
def test_two_calls_within_a_window_share_a_key_also_across_its_edge(
    first_s: float, apart_s: float
) -> None:
    inserted, _ = window(first_s)
    assert inserted in window(first_s + apart_s)


def test_calls_two_windows_apart_share_no_key() -> None:
    assert not set(window(1_000)) & set(window(1_020))


def test_another_tenant_task_or_payload_is_another_window() -> None:
    current, _ = window(1_000)
    assert keys.check_key(current)
    assert current not in window(1_000, tenant="other")
    assert current not in window(1_000, a=2)
    assert current not in keys.window_keys("u", "acme", {"a": 1}, window_s=10, now_s=1_000)


@pytest.mark.parametrize("window_s", [0, -1, float("nan"), float("inf")])
def test_a_window_has_a_length(window_s: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        keys.window_keys("t", "", {}, window_s=window_s, now_s=0)


def test_derived_keys_are_the_same_in_every_process() -> None:
    code = (
        "from tasks import keys\n"
        "print(keys.content_key('t', {'a': 1}), keys.idempotency_key('a' * 300),"
        " keys.window_keys('t', 'acme', {'a': 1}, 10, 1000.0))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
