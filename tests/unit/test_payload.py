"""What may be in a payload, how it is stored, and how it comes back."""
# Tasks without annotations are a subject of these tests.
# mypy: disable-error-code="no-untyped-def, empty-body, assignment"

from __future__ import annotations

import functools
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import pytest
from celery import Celery, shared_task
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, BeforeValidator, Field, SecretStr, field_validator

from tasks import payload
from tasks.errors import InvalidPayload

if TYPE_CHECKING:

    class OnlyForTypeCheckers: ...


SECRET = "hunter2"
HUGE = 10**4300

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=25,
)  # fmt: skip
json_objects = st.dictionaries(texts, json_values, max_size=8)


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    SMALL = 1


class Status(StrEnum):
    PAID = "paid"


class Shape(Enum):
    SQUARE = 4


@dataclass
class Address:
    city: str
    since: date
    tags: set[str] = field(default_factory=set)


class Line(BaseModel):
    sku: UUID
    price: Decimal
    note: str = "none"


class Event(BaseModel):
    name: str
    id: UUID = Field(default_factory=uuid4)


class Customer:
    """A class pydantic knows nothing about, as a Django model is."""


app = Celery("test_payload", set_as_current=False)


def signature(function: Callable[..., object], **options: Any) -> payload.Signature:
    options.setdefault("name", f"{function.__name__}.{uuid4()}")
    return payload.signature_of(app.task(**options)(function))


def taking(annotation: object) -> payload.Signature:
    def task(value): ...

    task.__annotations__ = {"value": annotation}
    return signature(task)


def through_the_ledger(annotation: object, value: object) -> object:
    """Exactly what production does: dump, text, parse, load."""
    there = taking(annotation)
    stored = payload.encode(there.dump({"value": value}))
    parsed = payload.parse(stored.encode())
    assert isinstance(parsed, dict)
    return there.load(parsed)["value"]


def refusal(call: Callable[[], object]) -> InvalidPayload:
    with pytest.raises(InvalidPayload) as caught:
        call()
    assert SECRET not in str(caught.value)
    return caught.value


# The wire


@given(json_objects)
def test_any_json_object_survives_unchanged_and_in_order(value: dict[str, object]) -> None:
    back = payload.parse(payload.dumps(value).encode())
    assert back == value
    assert payload.dumps(back) == payload.dumps(value)


@given(json_values)
def test_what_check_json_accepts_the_strict_parser_accepts(value: object) -> None:
    payload.check_json(value)
    payload.parse(payload.dumps(value).encode())


@pytest.mark.parametrize(
    "value", [2**53 + 1, -(2**64), 10**4299, -(10**4300) + 1], ids=int.bit_length
)
def test_integers_of_any_allowed_size_survive(value: int) -> None:
    assert payload.parse(payload.dumps([value]).encode()) == [value]
    assert through_the_ledger(int, value) == value
    assert through_the_ledger(Any, {"deep": [value]}) == {"deep": [value]}
    assert through_the_ledger(list[int], [value]) == [value]


def test_text_beyond_the_basic_plane_is_stored_as_itself() -> None:
    assert payload.dumps({"a": "😀 ü"}) == '{"a":"😀 ü"}'
    assert payload.parse(rb'"\ud83d\ude00"') == "😀"


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
    error = refusal(lambda: payload.parse(raw))
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
    assert refusal(lambda: payload.parse(raw)).malformed


def test_a_hundred_levels_are_allowed() -> None:
    assert payload.parse(b"[" * 100 + b"]" * 100)


def test_a_long_integer_is_refused_whatever_the_limit_of_the_interpreter() -> None:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        assert refusal(lambda: payload.parse(b"9" * 4301)).malformed
        assert payload.parse(b"9" * 4300) == 10**4300 - 1
    finally:
        sys.set_int_max_str_digits(before)


# Values from Python


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
    error = refusal(lambda: payload.check_json(value))
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
    error = refusal(lambda: payload.check_json(value))
    assert (error.path, error.malformed) == (path, False)
    assert "annotate" in error.message


def test_a_cycle_is_an_error_of_bounded_length() -> None:
    cycle: dict[str, object] = {}
    cycle["self"] = [cycle, cycle]
    error = refusal(lambda: payload.check_json(cycle))
    assert error.malformed
    assert len(str(error)) < 400


def test_a_cycle_among_typed_values_is_an_error_too() -> None:
    cycle: list[object] = [UUID(int=1)]
    cycle.append(cycle)
    for annotation in (list, list[UUID], Any):
        assert refusal(functools.partial(taking(annotation).dump, {"value": cycle}))


def test_a_path_starts_where_the_caller_says() -> None:
    assert refusal(lambda: payload.check_json([0, "\0"], path="$.data")).path == "$.data[1]"


def test_subclasses_of_text_and_numbers_arrive_as_the_plain_type() -> None:
    for sent, plain in [(Status.PAID, "paid"), (Size.SMALL, 1)]:
        back = through_the_ledger(Any, sent)
        assert back == plain
        assert type(back) is type(plain)


# Size


def test_the_size_limit_counts_bytes_and_names_both_numbers() -> None:
    room = payload.MAX_PAYLOAD_BYTES - len('{"a":""}')
    payload.encode({"a": "x" * room})
    for text in ("x" * (room + 1), "é" * (room // 2 + 1)):
        error = refusal(functools.partial(payload.encode, {"a": text}))
        assert error.too_large
        assert error.malformed
        assert str(payload.MAX_PAYLOAD_BYTES) in error.message


# Fingerprints


@given(json_objects, st.randoms())
def test_key_order_does_not_change_the_fingerprint(
    value: dict[str, object], shuffle: random.Random
) -> None:
    names = list(value)
    shuffle.shuffle(names)
    other = {name: value[name] for name in names}
    assert payload.fingerprint("t", value) == payload.fingerprint("t", other)
    assert payload.differing_fields(value, other) == []


@given(json_objects, json_objects)
def test_equal_fingerprints_mean_equal_json(a: dict[str, object], b: dict[str, object]) -> None:
    same_text = json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)
    assert (payload.fingerprint("t", a) == payload.fingerprint("t", b)) == same_text


def test_one_as_integer_float_text_and_boolean_are_four_payloads() -> None:
    assert len({payload.fingerprint("t", {"a": v}) for v in (1, 1.0, "1", True)}) == 4
    assert len({payload.canonical({"a": v}) for v in [1, 1.0, "1", True]}) == 4


def test_the_task_is_part_of_the_fingerprint() -> None:
    assert payload.fingerprint("a", {"x": 1}) != payload.fingerprint("b", {"x": 1})


def test_a_fingerprint_is_the_same_in_every_release() -> None:
    """It is compared with rows written weeks ago: changing this value breaks repeats."""
    assert payload.fingerprint("orders.tasks.capture", {"card": "ü", "order_id": 7}) == (
        "4fad4d2597302200526a664cabbb075b9d2c532635212782d53832a6d410246f"
    )


def test_differing_fields_are_named_without_their_values() -> None:
    old = {"amount": 100, "card": SECRET, "same": [1], "gone": None}
    new = {"amount": 100.0, "card": "other", "same": [1], "added": None}
    assert payload.differing_fields(old, new) == ["amount", "card", "added", "gone"]


# Binding


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

    there = payload.signature_of(app.register_task(Old()))
    assert there.load({"order_id": str(UUID(int=1))}) == {"order_id": UUID(int=1)}


def test_a_decorated_function_is_read_through_wraps() -> None:
    @functools.wraps(capture)
    def wrapper(*args, **kwargs): ...

    assert signature(wrapper).names == ("order_id", "card", "note", "fast")


def test_a_shared_task_is_read_through_its_proxy() -> None:
    task = shared_task(name="shared")(capture)
    assert payload.signature_of(task).names[0] == "order_id"
    assert payload.signature_of(task) is payload.signature_of(task)


def test_the_signature_is_built_once_per_task() -> None:
    task = app.task(name="once")(capture)
    assert payload.signature_of(task) is payload.signature_of(task)


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


# Conversion

LINE = Line(sku=UUID(int=1), price=Decimal("9.90"))
ROUND_TRIPS: list[tuple[Any, object]] = [
    (int, -7),
    (float, 1e300),
    (str, "😀"),
    (int | None, None),
    (UUID, UUID(int=2**127)),
    (UUID | None, None),
    (Decimal, Decimal("1.10")),
    (Decimal, Decimal("1E+4000")),
    (Decimal, Decimal("0." + "1" * 60)),
    (date, date(2026, 3, 29)),
    (datetime, datetime(2026, 3, 29, 2, 30, 0, 123456)),
    (datetime, datetime(2026, 3, 29, tzinfo=UTC)),
    (timedelta, timedelta(days=3, microseconds=1)),
    (Color, Color.RED),
    (Shape, Shape.SQUARE),
    (Size, Size.SMALL),
    (Status, Status.PAID),
    (Literal["a", 1], 1),
    (bytes, b"abc"),
    (set[int], {3, 1, 2}),
    (frozenset[UUID], frozenset({UUID(int=1), UUID(int=2)})),
    (tuple[int, UUID], (1, UUID(int=1))),
    (tuple[date, ...], (date(2026, 1, 1),)),
    (dict[int, str], {1: "a", 2: "b"}),
    (dict[UUID, list[Decimal]], {UUID(int=1): [Decimal("1.0")]}),
    (list[UUID], [UUID(int=1)]),
    (dict, {"z": 1, "a": [True, None]}),
    (Address, Address("Paris", date(2026, 1, 1), {"a", "b"})),
    (Line, LINE),
    (list[Line], [LINE, LINE]),
    (Line | None, LINE),
    (Event, Event(name="x")),
    (Any, {"a": [1, 1.5, None, True, "x"]}),
]


@pytest.mark.parametrize(("annotation", "value"), ROUND_TRIPS)
def test_annotated_values_arrive_as_they_were_sent(annotation: Any, value: object) -> None:
    back = through_the_ledger(annotation, value)
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(("annotation", "value"), ROUND_TRIPS)
def test_the_stored_form_sent_again_over_http_is_the_same_intent(
    annotation: Any, value: object
) -> None:
    there = taking(annotation)
    stored = there.dump({"value": value})
    again = payload.parse(payload.encode(stored).encode())
    assert payload.canonical(there.dump(again)) == payload.canonical(stored)  # type: ignore[arg-type]


@given(
    st.datetimes(min_value=datetime(1973, 1, 1))
    | st.datetimes(min_value=datetime(1973, 1, 1), timezones=st.timezones())
)
def test_every_datetime_of_the_present_keeps_its_instant_in_any_zone(moment: datetime) -> None:
    back = MOMENT.load(MOMENT.dump({"value": moment}))["value"]
    assert isinstance(back, datetime)
    assert back.isoformat() == moment.isoformat()


MOMENT = taking(datetime)
AMOUNT = taking(Decimal)


@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_every_finite_decimal_survives_to_the_digit(amount: Decimal) -> None:
    assert str(AMOUNT.load(AMOUNT.dump({"value": amount}))["value"]) == str(amount)


def test_a_moment_in_the_repeated_hour_is_accepted() -> None:
    moment = datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Paris"))
    back = through_the_ledger(datetime, moment)
    assert isinstance(back, datetime)
    assert back.timestamp() == moment.timestamp()


@pytest.mark.parametrize(
    ("annotation", "from_python", "from_http"),
    [
        (UUID, UUID("8f14e45f-ceea-467f-a7e6-0000000000ab"), "8F14E45FCEEA467FA7E60000000000AB"),
        (Decimal, Decimal("1.10"), "1.10"),
        (datetime, datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01T00:00:00+00:00"),
        (set[int], {3, 1, 2}, [2, 1, 3, 3]),
        (Color, Color.RED, "red"),
        (float, 7.0, 7),
        (Line, Line(sku=UUID(int=1), price=Decimal(2)), {"price": "2", "sku": str(UUID(int=1))}),
        (list[UUID], (UUID(int=1),), [str(UUID(int=1))]),
    ],
)
def test_one_intent_from_python_and_from_http_has_one_fingerprint(
    annotation: Any, from_python: object, from_http: object
) -> None:
    there = taking(annotation)
    a, b = there.dump({"value": from_python}), there.dump({"value": from_http})
    assert payload.fingerprint("t", a) == payload.fingerprint("t", b)


def test_sets_have_one_stored_form_in_every_process() -> None:
    code = (
        "from tests.unit.test_payload import *\n"
        "names = {f'name-{i}' for i in range(20)}\n"
        "where = Address('x', date(2026, 1, 1), names)\n"
        "print(taking(list[Address]).dump({'value': [where]}))\n"
        "print(taking(set[frozenset[str]]).dump({'value': {frozenset(names)}}))"
    )
    run = functools.partial(subprocess.run, capture_output=True, text=True, check=True)
    outputs = {
        run([sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."}).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_defaults_are_not_stored() -> None:
    assert signature(capture).dump({"order_id": 1, "card": ""}) == {"order_id": 1, "card": ""}
    dumped = taking(Line).dump({"value": LINE})
    assert dumped == {"value": {"sku": str(UUID(int=1)), "price": "9.90"}}


def test_a_random_default_of_a_model_arrives_as_the_sender_saw_it() -> None:
    sent = Event(name="x")
    assert through_the_ledger(Event, sent) == sent
    repeats = [taking(Event).dump({"value": {"name": "x"}}) for _ in range(2)]
    assert repeats[0] == repeats[1] == {"value": {"name": "x"}}


def test_a_model_may_be_sent_by_alias_or_by_name() -> None:
    class Aliased(BaseModel):
        order_id: int = Field(alias="orderId")

    forms = [
        taking(Aliased).dump({"value": value})
        for value in (Aliased(orderId=1), {"orderId": 1}, {"order_id": 1})
    ]
    assert forms == [{"value": {"order_id": 1}}] * 3
    assert through_the_ledger(Aliased, {"orderId": 1}) == Aliased(orderId=1)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, SECRET),
        (int, "7"),
        (int, True),
        (int, 7.0),
        (int, 7.5),
        (int, None),
        (float, "1.5"),
        (float, True),
        (str, 7),
        (str, UUID(int=1)),
        (bool, 1),
        (bool, "yes"),
        (UUID, SECRET),
        (UUID, 7),
        (Decimal, SECRET),
        (Decimal, True),
        (Decimal, Decimal("NaN")),
        (date, SECRET),
        (date, 0),
        (datetime, 1_700_000_000),
        (Color, SECRET),
        (Literal["a"], SECRET),
        (int | UUID, SECRET),
        (list[int], [1, SECRET]),
        (list[int], {1, 2.5}),
        (Line, {"sku": SECRET, "price": "1"}),
        (Annotated[str, Field(pattern="^a$")], SECRET),
        (Annotated[str, Field(max_length=1)], SECRET),
    ],
)
def test_a_value_that_does_not_fit_is_refused_without_being_shown(
    annotation: Any, value: object
) -> None:
    error = refusal(lambda: taking(annotation).dump({"value": value}))
    assert error.path.startswith("$.value")
    assert not error.malformed


def test_errors_inside_a_value_have_their_full_path() -> None:
    def path(annotation: Any, value: object) -> str:
        return refusal(lambda: taking(annotation).dump({"value": value})).path

    good = {"sku": str(UUID(int=1)), "price": "1"}
    assert path(list[Line], [good, {**good, "price": SECRET}]) == "$.value[1].price"
    assert path(list[Line], [{"sku": str(UUID(int=1))}]) == "$.value[0].price"
    assert path(dict[str, list[int]], {"a b": [1, "x"]}) == '$.value["a b"][1]'
    assert path(dict[int, str], {"x": "a"}) == "$.value.x"
    assert path(Line | UUID, {**good, "price": SECRET}) == "$.value.price"
    assert path(list[UUID], (UUID(int=1), SECRET)) == "$.value[1]"


def test_messages_of_validators_are_not_repeated_since_they_may_quote_the_value() -> None:
    class Card(BaseModel):
        number: str

        @field_validator("number")
        @classmethod
        def luhn(cls, number: str) -> str:
            raise ValueError(f"{number} is no card number")

    error = refusal(lambda: taking(Card).dump({"value": {"number": SECRET}}))
    assert (error.path, error.message) == ("$.value.number", "expected Card")


def test_an_unknown_discriminator_is_not_repeated() -> None:
    class Cat(BaseModel):
        kind: Literal["cat"]

    class Dog(BaseModel):
        kind: Literal["dog"]

    pet = Annotated[Cat | Dog, Field(discriminator="kind")]
    refusal(lambda: taking(pet).dump({"value": {"kind": SECRET}}))


def test_messages_say_what_was_expected() -> None:
    def message(annotation: Any, value: object) -> str:
        return refusal(lambda: taking(annotation).dump({"value": value})).message

    assert message(int, SECRET) == "Input should be a valid integer"
    assert message(UUID, SECRET) == "expected UUID"
    assert message(int | UUID, SECRET) == "expected int | uuid.UUID"
    assert message(Annotated[int, Field(gt=3)], 1) == "Input should be greater than 3"


def test_a_task_can_ask_for_more_conversion() -> None:
    assert through_the_ledger(Annotated[int, BeforeValidator(int)], "7") == 7


@pytest.mark.parametrize(
    ("annotation", "value", "path"),
    [
        (float, float("nan"), "$.value"),
        (float | None, float("-inf"), "$.value"),
        (float, 10**400, "$.value"),
        (list[float], (1.0, float("inf")), "$.value[1]"),
        (str, "\0", "$.value"),
        (str, "\ud800", "$.value"),
        (dict[str, UUID], {"\0": UUID(int=1)}, r'$.value["\u0000"]'),
        (tuple[str, ...], ("a", "\0"), "$.value[1]"),
        pytest.param(int, HUGE, "$.value", id="huge"),
        (Address, Address("\0", date(2026, 1, 1)), "$.value.city"),
    ],
)
def test_what_cannot_be_stored_is_malformed_also_inside_typed_values(
    annotation: Any, value: object, path: str
) -> None:
    error = refusal(lambda: taking(annotation).dump({"value": value}))
    assert (error.path, error.malformed) == (path, True)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (dict, {1: "a", "1": "b"}),
        (dict, {1: "a"}),
        (dict[str, Any], {"a": (1, 2)}),
        (list, [UUID(int=1)]),
        (dict[str, Any], {"a": Customer()}),
        (bytes, b"\xff"),
        (SecretStr, SecretStr(SECRET)),
        (SecretStr, SECRET),
        # Local mean time had seconds in its offset, ISO 8601 has not.
        (datetime, datetime(1900, 1, 1, tzinfo=ZoneInfo("Africa/Abidjan"))),
        (Address, Address(city=7, since=date(2026, 1, 1))),  # type: ignore[arg-type]
    ],
)
def test_what_would_come_back_changed_is_refused(annotation: Any, value: object) -> None:
    error = refusal(lambda: taking(annotation).dump({"value": value}))
    assert error.path.startswith("$.value")
    assert not error.malformed


def test_a_subclass_that_would_lose_its_fields_is_refused() -> None:
    class Priced(Line):
        tax: int

    sent = Priced(sku=UUID(int=1), price=Decimal(1), tax=2)
    assert refusal(lambda: taking(Line).dump({"value": sent})).path == "$.value"


@pytest.mark.parametrize("value", [UUID(int=1), date(2026, 1, 1), {1: "a"}, Customer(), {1}, (1,)])
def test_unannotated_parameters_take_plain_json_and_nothing_else(value: object) -> None:
    def task(value): ...

    error = refusal(lambda: signature(task).dump({"value": value}))
    assert (error.path, error.malformed) == ("$.value", False)
    assert "annotate" in error.message


def test_an_object_that_cannot_travel_is_refused_with_the_remedy() -> None:
    error = refusal(lambda: taking(Customer).dump({"value": Customer()}))
    assert (error.path, error.malformed) == ("$.value", False)
    assert "primary key" in error.message


def test_an_annotation_only_for_type_checkers_spoils_no_other_parameter() -> None:
    def task(order_id: UUID, other: OnlyForTypeCheckers = None) -> OnlyForTypeCheckers: ...

    there = signature(task)
    assert there.load(there.dump({"order_id": UUID(int=1)})) == {"order_id": UUID(int=1)}
    error = refusal(lambda: there.dump({"order_id": UUID(int=1), "other": 1}))
    assert "OnlyForTypeCheckers" in error.message


def test_a_default_of_none_allows_none() -> None:
    def task(limit: int = None): ...  # noqa: RUF013

    assert signature(task).dump({"limit": None}) == {"limit": None}


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


# Display


def test_sensitive_parameters_are_masked_in_a_copy() -> None:
    sent = {"order_id": 7, "card": {"number": SECRET}}
    assert payload.mask(sent, ("card", "absent")) == {"order_id": 7, "card": payload.MASK}
    assert sent["card"] == {"number": SECRET}


# Results


@given(json_values)
def test_a_json_result_is_stored_as_it_is(value: object) -> None:
    assert payload.safe_result(value) == (payload.dumps(value), "")


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
    text, note = payload.safe_result(value)
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
    text, note = payload.safe_result(value)
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
    text, note = payload.safe_result(value)
    assert note
    assert len(text.encode()) <= payload.MAX_RESULT_BYTES
    payload.check_json(payload.parse(text.encode()))


@pytest.mark.parametrize("max_bytes", [2, 3, 50, 5000])
def test_a_large_result_keeps_its_beginning_within_the_bound(max_bytes: int) -> None:
    text, note = payload.safe_result({"a": 'é"\\' * 9_999}, max_bytes)
    assert len(text.encode()) <= max_bytes
    assert '{"a":"é'.startswith(json.loads(text)[:7])
    assert str(max_bytes) in note
