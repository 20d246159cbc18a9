"""What annotated values are stored as, and how they come back."""
# Tasks without annotations are a subject of these tests.
# mypy: disable-error-code="no-untyped-def, empty-body, assignment"

from __future__ import annotations

import functools
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, BeforeValidator, Field, SecretStr, field_validator

from tasks.payload import encode, fingerprint
from tasks.strict_json import canonical, parse
from tests.samples import (
    HUGE,
    LINE,
    SECRET,
    Address,
    Color,
    Customer,
    Event,
    Line,
    Shape,
    Size,
    Status,
    refusal,
    signature,
    taking,
)

if TYPE_CHECKING:

    class OnlyForTypeCheckers: ...


def through_the_ledger(annotation: object, value: object) -> object:
    """Exactly what production does: dump, text, parse, load."""
    there = taking(annotation)
    stored = encode(there.dump({"value": value}))
    parsed = parse(stored.encode())
    assert isinstance(parsed, dict)
    return there.load(parsed)["value"]


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
    (datetime, datetime(2026, 3, 29, 2, 30, 0, 123456)),  # noqa: DTZ001  (naive on purpose)
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
    again = parse(encode(stored).encode())
    assert canonical(there.dump(again)) == canonical(stored)  # type: ignore[arg-type]


MOMENT = taking(datetime)
AMOUNT = taking(Decimal)
SINCE = datetime(1973, 1, 1)  # noqa: DTZ001  (hypothesis adds the zones)


@given(st.datetimes(min_value=SINCE) | st.datetimes(min_value=SINCE, timezones=st.timezones()))
def test_every_datetime_of_the_present_keeps_its_instant_in_any_zone(moment: datetime) -> None:
    back = MOMENT.load(MOMENT.dump({"value": moment}))["value"]
    assert isinstance(back, datetime)
    assert back.isoformat() == moment.isoformat()


@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_every_finite_decimal_survives_to_the_digit(amount: Decimal) -> None:
    assert str(AMOUNT.load(AMOUNT.dump({"value": amount}))["value"]) == str(amount)


def test_a_moment_in_the_repeated_hour_is_accepted() -> None:
    moment = datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Paris"))
    back = through_the_ledger(datetime, moment)
    assert isinstance(back, datetime)
    assert back.timestamp() == moment.timestamp()


def test_sets_have_one_stored_form_in_every_process() -> None:
    code = (
        "from tests.unit.test_parameter import *\n"
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


def test_defaults_of_a_model_are_not_stored() -> None:
    dumped = taking(Line).dump({"value": LINE})
    assert dumped == {"value": {"sku": str(UUID(int=1)), "price": "9.90"}}


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
    assert fingerprint("t", a) == fingerprint("t", b)


@pytest.mark.parametrize(
    "value", [2**53 + 1, -(2**64), 10**4299, -(10**4300) + 1], ids=int.bit_length
)
def test_integers_of_any_allowed_size_survive(value: int) -> None:
    assert through_the_ledger(int, value) == value
    assert through_the_ledger(Any, {"deep": [value]}) == {"deep": [value]}
    assert through_the_ledger(list[int], [value]) == [value]


def test_subclasses_of_text_and_numbers_arrive_as_the_plain_type() -> None:
    for sent, plain in [(Status.PAID, "paid"), (Size.SMALL, 1)]:
        back = through_the_ledger(Any, sent)
        assert back == plain
        assert type(back) is type(plain)


def test_a_cycle_among_typed_values_is_an_error_too() -> None:
    cycle: list[object] = [UUID(int=1)]
    cycle.append(cycle)
    for annotation in (list, list[UUID], Any):
        assert refusal(functools.partial(taking(annotation).dump, {"value": cycle}))
