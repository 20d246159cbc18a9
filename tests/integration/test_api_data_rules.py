"""What a request may carry: refused with the place named and nothing written, or kept unchanged."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tasks.models import Job
from tests import published_tasks  # noqa: F401  (registers them)
from tests.callers import Caller, api_client, rows

pytestmark = pytest.mark.django_db

KEEP = "published.keep"
LIMIT = 256 * 1024


@pytest.fixture
def caller() -> Caller:
    return api_client()


def send(caller: Caller, payload: str, **headers: str) -> Any:
    """``payload`` is JSON text, sent as it is."""
    body = f'{{"task": "{KEEP}", "payload": {payload}}}'
    return caller.post_raw("/jobs", body.encode("utf-8"), idempotency_key="k", **headers)


def refused(answer: Any, status: int, path: str | None) -> str:
    """Its detail, after checking that nothing was written."""
    assert answer.status_code == status, answer.content
    assert answer["Content-Type"] == "application/problem+json"
    assert answer.json().get("path") == path, answer.content
    assert rows() == 0
    return str(answer.json()["detail"])


# --- what JSON or PostgreSQL cannot hold --------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        (r'{"a": "x\u0000y"}', "$.payload.a"),
        (r'{"a": ["x", "x\u0000y"]}', "$.payload.a[1]"),
        ('{"a": NaN}', "$.payload.a"),
        ('{"a": Infinity}', "$.payload.a"),
        ('{"a": {"b": -Infinity}}', "$.payload.a.b"),
        ('{"a": 1e400}', "$.payload.a"),
        ('{"a": [1, -1e999]}', "$.payload.a[1]"),
        (r'{"a": "\ud800"}', "$.payload.a"),
        (r'{"a": {"b": "x\udfff"}}', "$.payload.a.b"),
    ],
)
def test_what_cannot_be_stored_is_400_and_names_the_place(
    caller: Caller, payload: str, path: str
) -> None:
    refused(send(caller, payload), 400, path)


@pytest.mark.parametrize(
    "payload",
    [
        r'{"x\u0000y": 1}',
        r'{"\ud800": 1}',
        '{"a": 1, "a": 2}',
        '{"a": {"b": 1, "b": 1}}',
        '{"a": ' + "9" * 4301 + "}",
        '{"a": ' + "[" * 200 + "]" * 200 + "}",
        '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"a": 1e200000}',
    ],
)
def test_other_text_that_cannot_be_stored_is_400(caller: Caller, payload: str) -> None:
    answer = send(caller, payload)
    assert answer.status_code == 400, answer.content
    assert answer.json()["path"].startswith("$")
    assert rows() == 0


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"{'task': 1}",
        b'{"task": "published.keep", "payload": {}} x',
        b'\xef\xbb\xbf{"task": "published.keep", "payload": {}}',
        b'{"task": "published.keep", "payload": {"a": "\xff"}}',
        b"\x00",
        b" ",
        b"[]",
        b'"published.keep"',
        b"7",
        b"null",
    ],
)
def test_a_body_that_is_no_json_object_is_400(caller: Caller, body: bytes) -> None:
    refused(caller.post_raw("/jobs", body, idempotency_key="k"), 400, "$")


def test_no_body_is_400(caller: Caller) -> None:
    refused(caller.post_raw("/jobs", b"", idempotency_key="k"), 400, None)


def test_the_envelope_is_held_to_the_same_rules(caller: Caller) -> None:
    body = rb'{"task": "published.\u0000keep", "payload": {}}'
    refused(caller.post_raw("/jobs", body, idempotency_key="k"), 400, "$.task")


def test_an_error_never_contains_the_value(caller: Caller) -> None:
    for payload in (r'{"card": "4242\u0000"}', '{"card": "4242", "card": "4242"}', '{"a": [4242'):
        assert b"4242" not in send(caller, payload).content
    answer = caller.enqueue("published.capture", {"order_id": "4242"}, key="k")
    assert answer.status_code == 422
    assert b"4242" not in answer.content


# --- size and type -----------------------------------------------------------------------


def test_a_payload_at_the_limit_is_kept_and_one_byte_more_is_413(caller: Caller) -> None:
    overhead = len('{"a":""}')
    refused(send(caller, json.dumps({"a": "x" * (LIMIT - overhead + 1)})), 413, "$.payload")
    assert send(caller, json.dumps({"a": "x" * (LIMIT - overhead)})).status_code == 202


def test_the_limit_counts_bytes_not_characters(caller: Caller) -> None:
    refused(
        send(caller, json.dumps({"a": "é" * (LIMIT // 2)}, ensure_ascii=False)), 413, "$.payload"
    )


def test_a_larger_body_is_413_before_it_is_read(caller: Caller) -> None:
    refused(send(caller, "not json" + " " * 1024 * 1024), 413, None)


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
def test_another_content_type_is_415(caller: Caller, kind: str) -> None:
    refused(send(caller, "{}", content_type=kind), 415, None)


def test_json_with_a_charset_is_json(caller: Caller) -> None:
    answer = send(caller, "{}", content_type="application/json; charset=utf-8")
    assert answer.status_code == 202


# --- what is understood and does not fit --------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"payload": None}, "$.payload"),
        ({"payload": []}, "$.payload"),
        ({"payload": "{}"}, "$.payload"),
        ({"task": 7}, "$.task"),
        ({"task": ""}, "$.task"),
        ({"task": "x" * 256}, "$.task"),
        ({"priority": 101}, "$.priority"),
        ({"priority": -101}, "$.priority"),
        ({"priority": 10**30}, "$.priority"),
        ({"priority": "5"}, "$.priority"),
        ({"priority": 5.0}, "$.priority"),
        ({"priority": True}, "$.priority"),
        ({"priority": None}, "$.priority"),
        ({"run_at": "2030-01-31T09:00:00"}, "$.run_at"),
        ({"run_at": "2030-01-31"}, "$.run_at"),
        ({"run_at": "tomorrow"}, "$.run_at"),
        ({"run_at": 1893456000}, "$.run_at"),
        ({"run_at": "1893456000"}, "$.run_at"),
        ({"run_at": "2030-02-30T09:00:00Z"}, "$.run_at"),
        ({"run_at": "9999-12-31T23:59:59-12:00"}, "$.run_at"),
        ({"start_by": "0001-01-01T00:00:00+12:00"}, "$.start_by"),
        ({"start_by": "soon"}, "$.start_by"),
        ({"ordering_key": 7}, "$.ordering_key"),
        ({"runat": "2030-01-31T09:00:00Z"}, "$.runat"),
        ({"id": "7"}, "$.id"),
    ],
)
def test_a_field_that_does_not_fit_is_422_and_named(
    caller: Caller, fields: dict[str, Any], path: str
) -> None:
    answer = caller.post("/jobs", {"task": KEEP, "payload": {}, **fields}, idempotency_key="k")
    refused(answer, 422, path)


@pytest.mark.parametrize("key", ["", "a b", "x" * 256])
def test_an_ordering_key_is_a_key(caller: Caller, key: str) -> None:
    refused(caller.enqueue(KEEP, {}, key="k", ordering_key=key), 400, "$.ordering_key")


@pytest.mark.parametrize("missing", ["task", "payload"])
def test_a_missing_field_is_422_and_named(caller: Caller, missing: str) -> None:
    body = {name: value for name, value in {"task": KEEP, "payload": {}}.items() if name != missing}
    assert "required" in refused(
        caller.post("/jobs", body, idempotency_key="k"), 422, f"$.{missing}"
    )


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        ({}, "$.payload.order_id"),
        ({"order_id": "seven"}, "$.payload.order_id"),
        ({"order_id": None}, "$.payload.order_id"),
        ({"order_id": 7, "colour": "red"}, "$.payload.colour"),
    ],
)
def test_a_payload_that_does_not_fit_the_task_is_422_and_named(
    caller: Caller, payload: dict[str, Any], path: str
) -> None:
    refused(caller.enqueue("published.capture", payload, key="k"), 422, path)


# --- what survives unchanged --------------------------------------------------------------


@pytest.mark.parametrize(
    "payload",
    [
        '{"a": ' + "9" * 4300 + "}",
        '{"a": -170141183460469231731687303715884105728}',
        '{"a": "0.10000000000000000000000000000000000001"}',
        '{"a": "😀 𝒳 e\u0301 \u2028"}',
        '{"z": 1, "a": 2, "m": {"y": 1, "b": 2}}',
        '{"a": [], "b": {}, "c": null, "d": false, "e": "", "f": 0, "g": -0.5, "h": 1e-300}',
        '{"__type__": "x", "__value__": "y", "self": 1, "": 2}',
    ],
    ids=["4300 digits", "128 bits", "decimal", "beyond the BMP", "key order", "kinds", "odd names"],
)
def test_what_json_can_hold_survives_unchanged(caller: Caller, payload: str) -> None:
    answer = send(caller, payload)
    assert answer.status_code == 202, answer.content
    stored = Job.objects.get().payload
    assert json.dumps(stored) == json.dumps(json.loads(payload))
    shown = caller.get(f"/jobs/{answer.json()['id']}").json()["payload"]
    assert json.dumps(shown) == json.dumps(json.loads(payload))
