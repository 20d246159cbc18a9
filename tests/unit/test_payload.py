"""How a payload is stored, told from others, and shown."""

from __future__ import annotations

import functools
import json
import random

from hypothesis import given
from hypothesis import strategies as st

from tasks.payload import MASK, MAX_PAYLOAD_BYTES, differing_fields, encode, fingerprint, mask
from tasks.strict_json import canonical
from tests.samples import SECRET, json_objects, refusal

# Size


def test_the_size_limit_counts_bytes_and_names_both_numbers() -> None:
    room = MAX_PAYLOAD_BYTES - len('{"a":""}')
    encode({"a": "x" * room})
    for text in ("x" * (room + 1), "é" * (room // 2 + 1)):
        error = refusal(functools.partial(encode, {"a": text}))
        assert error.too_large
        assert error.malformed
        assert str(MAX_PAYLOAD_BYTES) in error.message


# Fingerprints


@given(json_objects, st.randoms())
def test_key_order_does_not_change_the_fingerprint(
    value: dict[str, object], shuffle: random.Random
) -> None:
    names = list(value)
    shuffle.shuffle(names)
    other = {name: value[name] for name in names}
    assert fingerprint("t", value) == fingerprint("t", other)
    assert differing_fields(value, other) == []


@given(json_objects, json_objects)
def test_equal_fingerprints_mean_equal_json(a: dict[str, object], b: dict[str, object]) -> None:
    same_text = json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)
    assert (fingerprint("t", a) == fingerprint("t", b)) == same_text


def test_one_as_integer_float_text_and_boolean_are_four_payloads() -> None:
    assert len({fingerprint("t", {"a": v}) for v in (1, 1.0, "1", True)}) == 4
    assert len({canonical({"a": v}) for v in [1, 1.0, "1", True]}) == 4


def test_the_task_is_part_of_the_fingerprint() -> None:
    assert fingerprint("a", {"x": 1}) != fingerprint("b", {"x": 1})


def test_a_fingerprint_is_the_same_in_every_release() -> None:
    """It is compared with rows written weeks ago: changing this value breaks repeats."""
    assert fingerprint("orders.tasks.capture", {"card": "ü", "order_id": 7}) == (
        "4fad4d2597302200526a664cabbb075b9d2c532635212782d53832a6d410246f"
    )


def test_differing_fields_are_named_without_their_values() -> None:
    old = {"amount": 100, "card": SECRET, "same": [1], "gone": None}
    new = {"amount": 100.0, "card": "other", "same": [1], "added": None}
    assert differing_fields(old, new) == ["amount", "card", "added", "gone"]


# Display


def test_sensitive_parameters_are_masked_in_a_copy() -> None:
    sent = {"order_id": 7, "card": {"number": SECRET}}
    assert mask(sent, ("card", "absent")) == {"order_id": 7, "card": MASK}
    assert sent["card"] == {"number": SECRET}
