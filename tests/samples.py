"""Values, types and tasks that the tests of payloads, signatures and results share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any
from uuid import UUID, uuid4

import pytest
from celery import Celery
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from tasks.errors import InvalidPayload
from tasks.signature import Signature, signature_of

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


LINE = Line(sku=UUID(int=1), price=Decimal("9.90"))


class Customer:
    """A class pydantic knows nothing about, as a Django model is."""


app = Celery("samples", set_as_current=False)


def signature(function: Callable[..., object], **options: Any) -> Signature:
    options.setdefault("name", f"{function.__name__}.{uuid4()}")
    return signature_of(app.task(shared=False, **options)(function))


def taking(annotation: object) -> Signature:
    def task(value: object) -> None: ...

    task.__annotations__ = {"value": annotation}
    return signature(task)


def refusal(call: Callable[[], object]) -> InvalidPayload:
    with pytest.raises(InvalidPayload) as caught:
        call()
    assert SECRET not in str(caught.value)
    return caught.value
