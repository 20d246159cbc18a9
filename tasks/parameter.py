"""One parameter of a task: its values become JSON, and come back, by its annotation.

Conversion is strict: text becomes what JSON has no notation for (UUID, Decimal, date, enum, ...),
but text, numbers and booleans never become each other: ``"7"``, ``7.0`` and ``True`` are refused
where an ``int`` is expected, because each hides a mistake of the caller. (An ``int`` is a fine
``float``.) A task that wants more says so: ``Annotated[int, BeforeValidator(int)]``.

Messages name the place and what was expected there, never the value: values can be secrets.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from pydantic import BaseModel, RootModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic_core import ErrorDetails
from pydantic_core.core_schema import ErrorType

from tasks.errors import InvalidPayload
from tasks.strict_json import ANNOTATE, canonical, check_json, dumps, is_json, path_to


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter. Values whose type is in ``exact`` need no conversion either way."""

    name: str
    required: bool
    default: object
    expected: str
    adapter: TypeAdapter[Any] | None
    exact: frozenset[type]
    problem: str

    @classmethod
    def of(cls, declared: inspect.Parameter, function: Callable[..., object]) -> Parameter:
        annotation = _annotation_of(declared, function)
        adapter, problem = _adapter(annotation)
        return cls(
            name=declared.name,
            required=declared.default is declared.empty,
            default=declared.default,
            expected=_display(annotation),
            adapter=adapter,
            exact=_exact_types(annotation),
            problem=problem,
        )

    def dump(self, value: object) -> object:
        if self.adapter is None:
            return self._plain(value)
        if is_json(value, path=f"$.{self.name}"):
            sent = self.load(value)
            form = self._form(sent, compact=True)
            if _came_back(sent, self.load(form), only_set=True):
                return form
        else:
            sent = self._validated(value)
            # The short form first: it is what HTTP would send. A model whose unset fields do
            # not come back alike (a random default) is kept in full.
            for compact in (True, False):
                form = self._form(sent, compact=compact)
                if _came_back(sent, self.load(form), only_set=False):
                    return form
        raise self._error(f"does not come back from JSON as it was sent; {ANNOTATE}")

    def load(self, value: object) -> Any:
        if self.adapter is None:
            return self._plain(value)
        try:
            return self.adapter.validate_json(
                dumps(value), strict=True, by_alias=True, by_name=True
            )
        except ValidationError as exc:
            raise self._misfit(exc, value) from None

    def schema(self) -> dict[str, Any]:
        try:
            schema = self.adapter.json_schema(by_alias=False) if self.adapter else {}
        except PydanticUserError:
            schema = {}
        if not self.required:
            with suppress(InvalidPayload):  # a default that is no JSON is not shown
                check_json(default := self.dump(self.default))
                schema["default"] = default
        return schema

    def _plain(self, value: object) -> object:
        if self.problem:
            raise self._error(self.problem)
        return value

    def _validated(self, value: object) -> Any:
        assert self.adapter is not None
        try:
            return self.adapter.validate_python(value, by_alias=True, by_name=True)
        except ValidationError as exc:
            raise self._misfit(exc, value) from None

    def _form(self, sent: object, *, compact: bool) -> object:
        assert self.adapter is not None
        try:
            form = self.adapter.dump_python(
                sent,
                mode="json",
                by_alias=False,
                round_trip=True,
                exclude_unset=compact,
                warnings=False,
            )
        except ValueError:  # unknown types, cycles, bytes that are no text
            raise self._error(f"cannot be written as JSON; {ANNOTATE}") from None
        check_json(form, path=f"$.{self.name}")
        return _with_sets_sorted(sent, form)

    def _misfit(self, exc: ValidationError, value: object) -> InvalidPayload:
        """The first complaint, without the parts that may quote the value."""
        first = exc.errors(include_url=False, include_input=False)[0]
        path, in_union = _place(f"$.{self.name}", first, value)
        quotes_value = not _SAFE_CONTEXT.issuperset(first.get("ctx", {}))
        if in_union or quotes_value or first["type"] not in _KNOWN_ERRORS:
            return InvalidPayload(f"expected {self.expected}", path=path)
        return InvalidPayload(first["msg"], path=path)

    def _error(self, message: str) -> InvalidPayload:
        return InvalidPayload(message, path=f"$.{self.name}")


def _annotation_of(declared: inspect.Parameter, function: Callable[..., object]) -> object:
    """Resolved one by one: a name that only type checkers see spoils no other parameter.

    ``limit: int = None``, usual in older code, means ``int | None``.
    """
    if declared.annotation is declared.empty:
        return Any
    holder = SimpleNamespace(__annotations__={declared.name: declared.annotation})
    scope = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        hint: Any = get_type_hints(holder, globalns=scope, include_extras=True)[declared.name]
        return hint | None if declared.default is None and hint not in _ANYTHING else hint
    except (NameError, AttributeError, TypeError, SyntaxError):
        return declared.annotation


def _adapter(annotation: object) -> tuple[TypeAdapter[Any] | None, str]:
    if annotation in _ANYTHING:
        return None, ""
    if isinstance(annotation, str):
        return None, f"annotation {annotation} is unknown at run time: import it unconditionally"
    try:
        return TypeAdapter(cast(Any, annotation)), ""
    except (PydanticUserError, PydanticUndefinedAnnotation, TypeError):
        return None, (
            f"{_display(annotation)} cannot travel as JSON: send what identifies it"
            " (a primary key), or annotate with a type pydantic knows"
        )


def _exact_types(annotation: object) -> frozenset[type]:
    """The types that ``annotation`` stores and restores unchanged; empty where it converts."""
    if annotation in _SCALARS:
        return frozenset({cast(type, annotation)})
    if get_origin(annotation) in (Union, UnionType):
        parts = [_exact_types(part) for part in get_args(annotation)]
        return frozenset().union(*parts) if all(parts) else frozenset()
    return frozenset()


def _display(annotation: object) -> str:
    if isinstance(annotation, type):
        text = annotation.__name__
    else:
        text = inspect.formatannotation(annotation)
    return text.replace("typing.", "")[:200]


def _place(path: str, error: ErrorDetails, value: Any) -> tuple[str, bool]:
    """The JSON path of an error, and whether pydantic went through the branches of a union."""
    in_union = False
    for part in error["loc"]:
        if _leads_into(value, part):
            value = value[part]
        elif not (error["type"] == "missing" and part == error["loc"][-1]):
            in_union = in_union or part != "[key]"
            continue
        path = path_to(path, part)
    return path, in_union


def _leads_into(value: object, part: int | str) -> bool:
    if isinstance(value, Mapping):
        return part in value
    return isinstance(value, list | tuple) and isinstance(part, int) and part < len(value)


def _with_sets_sorted(sent: object, form: Any) -> Any:
    """Sets have no order, so without this each process would store another text."""
    if isinstance(sent, RootModel):
        sent = sent.root
    match sent, form:
        case set() | frozenset(), list():
            items = map(_with_sets_sorted, sent, form)
            return sorted(items, key=canonical)
        case list() | tuple(), list():
            return list(map(_with_sets_sorted, sent, form))
        case dict(), dict() if len(sent) == len(form):
            return dict(
                zip(form, map(_with_sets_sorted, sent.values(), form.values()), strict=True)
            )
        case _, dict() if isinstance(sent, BaseModel) or is_dataclass(sent):
            return {n: _with_sets_sorted(getattr(sent, n, None), f) for n, f in form.items()}
    return form


def _came_back(sent: Any, back: Any, *, only_set: bool) -> bool:
    """Whether the worker gets what was sent. ``only_set``: unset fields of models may differ."""
    if isinstance(sent, BaseModel) or (is_dataclass(sent) and not isinstance(sent, type)):
        names = _field_names(sent, only_set=only_set)
        return type(sent) is type(back) and all(
            _came_back(getattr(sent, n), getattr(back, n), only_set=only_set) for n in names
        )
    if not isinstance(sent, type(back)):
        return False
    if isinstance(sent, dict):
        return len(sent) == len(back) and all(
            _came_back(a, b, only_set=only_set)
            for pair in zip(sent.items(), back.items(), strict=True)
            for a, b in zip(*pair, strict=True)
        )
    if isinstance(sent, list | tuple):
        return len(sent) == len(back) and all(
            _came_back(a, b, only_set=only_set) for a, b in zip(sent, back, strict=True)
        )
    if isinstance(sent, datetime):  # == is never true for a repeated hour across zones
        return sent.isoformat() == str(back.isoformat())
    has_no_equality = type(sent).__eq__ is cast(object, object.__eq__)
    return has_no_equality or bool(sent == back)


def _field_names(sent: Any, *, only_set: bool) -> Iterable[str]:
    if not isinstance(sent, BaseModel):
        return [field.name for field in fields(sent)]
    return sent.model_fields_set | (set() if only_set else set(type(sent).model_fields))


_ANYTHING = (Any, object)
_SCALARS = (int, str, bool, float, NoneType)
_KNOWN_ERRORS = frozenset(get_args(ErrorType)) - {"value_error", "assertion_error"}
# What pydantic fills into its messages from the declaration, not from the value.
_SAFE_CONTEXT = frozenset(
    {"gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern", "expected"}
    | {"max_digits", "decimal_places", "whole_digits", "class_name", "class", "field_type"}
    | {"tz_expected", "expected_version", "expected_schemes", "discriminator", "expected_tags"}
)
