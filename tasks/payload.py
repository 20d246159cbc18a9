"""What a job may carry: strict JSON, checked and converted by the signature of its task.

The stored form is the *canonical JSON form of the value as sent*: a UUID object from Python and
its text from HTTP are stored, and fingerprinted, alike; defaults of the task are never filled in.

Conversion is strict: text becomes what JSON has no notation for (UUID, Decimal, date, enum, ...),
but text, numbers and booleans never become each other: ``"7"``, ``7.0`` and ``True`` are refused
where an ``int`` is expected, because each hides a mistake of the caller. (An ``int`` is a fine
``float``.) A task that wants more says so: ``Annotated[int, BeforeValidator(int)]``.

Messages name the place and what was expected there, never the value: values can be secrets.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import re
import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import datetime
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from celery.app.task import Task
from pydantic import BaseModel, RootModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic_core import ErrorDetails, to_jsonable_python
from pydantic_core.core_schema import ErrorType

from tasks.errors import InvalidPayload

# A payload names work, it does not carry it: a row this size still fits a few TOAST pages, and
# ten thousand waiting jobs a few gigabytes. Larger things belong in object storage.
MAX_PAYLOAD_BYTES = 256 * 1024
# A return value often becomes the next payload, so it has the same bound.
MAX_RESULT_BYTES = MAX_PAYLOAD_BYTES
# Python's own limit for int <-> text; its cost is quadratic, and other readers stop there too.
MAX_DIGITS = 4300
# Far below the recursion limits of Python and PostgreSQL, far above any honest document.
MAX_DEPTH = 100
_MAX_STEPS = 20  # of a path in a message
MASK = "••••"

_INT_BOUND = 10**MAX_DIGITS
_PREVIEW_BYTES = 4096
_ANNOTATE = "annotate the parameter of the task with its type, or send plain JSON"


def parse(raw: bytes) -> object:
    """Strict JSON from the wire; ``InvalidPayload(malformed=True)`` says where it is not."""
    try:
        text = raw.decode("utf-8")
        value = _loads(text)
    except UnicodeDecodeError as exc:
        raise InvalidPayload(f"not UTF-8 at byte {exc.start}", malformed=True) from None
    except json.JSONDecodeError as exc:
        reason = exc.msg.partition(":")[0]
        raise InvalidPayload(
            f"not JSON: {reason}, line {exc.lineno} column {exc.colno}", malformed=True
        ) from None
    except RecursionError:
        raise InvalidPayload(_TOO_DEEP, malformed=True) from None
    check_json(value)
    return value


def check_json(value: object, *, path: str = "$") -> None:
    """Refuses what JSON and PostgreSQL cannot hold unchanged, naming the place under ``path``.

    Allowed are None, bool, int, float, str, list and dict (and their subclasses, which arrive
    as the plain type). Values of other types are no fault of the text, so they are not
    ``malformed``; NaN, NUL, lone surrogates and the like are.
    """
    try:
        _walk(value, 0)
    except _Refused as refused:
        raise refused.error(path) from None


def dumps(value: object) -> str:
    """Compact JSON, keys in the order given. ``value`` has passed ``check_json``."""
    return _WRITER.encode(value)


def encode(payload: Mapping[str, object]) -> str:
    """The text to store; ``InvalidPayload(too_large=True)`` above ``MAX_PAYLOAD_BYTES``."""
    text = dumps(payload)
    size = len(text) if text.isascii() else len(text.encode())
    if size > MAX_PAYLOAD_BYTES:
        raise InvalidPayload(
            f"{size} bytes of JSON, the limit is {MAX_PAYLOAD_BYTES}",
            malformed=True,
            too_large=True,
        )
    return text


def canonical(value: object) -> bytes:
    """One spelling for fingerprints: keys sorted; ``1``, ``1.0``, ``"1"`` and ``true`` differ."""
    return _CANONICAL_WRITER.encode(value).encode()


def fingerprint(task_name: str, payload: Mapping[str, object]) -> str:
    """Hex SHA-256 that tells a repeat from a conflict. JSON has no raw NUL, so it separates."""
    return hashlib.sha256(task_name.encode() + b"\0" + canonical(payload)).hexdigest()


def differing_fields(old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    """Names of the top-level fields that differ, those of ``new`` first; never values."""
    names = dict.fromkeys([*new, *old])
    return [n for n in names if _field(old, n) != _field(new, n)]


def mask(payload: Mapping[str, object], sensitive: Iterable[str]) -> dict[str, object]:
    """A copy for display, with the values of ``sensitive`` parameters hidden."""
    hidden = frozenset(sensitive)
    return {name: MASK if name in hidden else value for name, value in payload.items()}


def safe_result(value: object, max_bytes: int = MAX_RESULT_BYTES) -> tuple[str, str]:
    """JSON text of a return value, and a note of what had to be changed ("" if nothing).

    Never fails and never stores what PostgreSQL would choke on. UUIDs, decimals, dates, enums,
    dataclasses, models, tuples and sets become their usual JSON form without a note.
    """
    storer = _Storer(max_values=max_bytes)
    try:
        text = dumps(storer.store(value))
    except Exception:  # too many values, or whatever the methods of foreign classes do
        storer.note("it became text")
        text = dumps(_as_text(value))
    size = len(text.encode())
    if size > max_bytes:
        storer.note(f"{size} bytes, the limit is {max_bytes}: only the beginning is kept, as text")
        text = _preview(text, max_bytes)
    return text, "; ".join(storer.notes)


def signature_of(task: Task[Any, Any]) -> Signature:
    """The signature of a task, built once and kept on it.

    ``InvalidPayload`` if its parameters cannot be told by name (``*args``, positional-only).
    """
    try:
        return task._payload_signature  # type: ignore[attr-defined, no-any-return]
    except AttributeError:
        signature = Signature(task.name, getattr(task, "_orig_run", task.run))
        task._payload_signature = signature  # type: ignore[attr-defined]
        return signature


class Signature:
    """The parameters of one task, as the schema of its payload."""

    def __init__(self, task_name: str, function: Any) -> None:
        self._task_name = task_name
        self._parameters: dict[str, _Parameter] = {}
        self._positional: list[str] = []
        self._extra: _Parameter | None = None
        for parameter in inspect.signature(function).parameters.values():
            self._add(parameter, _annotation_of(parameter, function))
        self._required = [name for name, p in self._parameters.items() if p.required]

    @property
    def names(self) -> tuple[str, ...]:
        """The declared parameters, in order."""
        return tuple(self._parameters)

    @property
    def takes_any_name(self) -> bool:
        """Whether the task has ``**kwargs``."""
        return self._extra is not None

    def bind(self, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object]:
        """The payload of a call, as sent: defaults are not filled in."""
        if len(args) > len(self._positional):
            raise InvalidPayload(
                f"task {self._task_name} takes at most {len(self._positional)} positional"
                f" arguments, {len(args)} were given"
            )
        payload = dict(zip(self._positional, args, strict=False))
        for name in payload:
            if name in kwargs:
                raise InvalidPayload("given twice, by position and by name", path=_step("$", name))
        payload.update(kwargs)
        self._check_names(payload)
        return payload

    def dump(self, payload: Mapping[str, object]) -> dict[str, object]:
        """Validates each value by its annotation and returns its canonical JSON form."""
        self._check_names(payload)
        dumped: dict[str, object] = {}
        for name, value in payload.items():
            parameter = self._parameter(name)
            dumped[name] = value if type(value) in parameter.exact else parameter.dump(value)
        check_json(dumped)
        return dumped

    def dump_value(self, name: str, value: object) -> object:
        """One argument in its canonical JSON form, without the others."""
        if name not in self._parameters and self._extra is None:
            raise InvalidPayload(
                f"task {self._task_name} has no such parameter", path=_step("$", name)
            )
        form = self._parameter(name).dump(value)
        check_json(form, path=_step("$", name))
        return form

    def load(self, payload: Mapping[str, object]) -> dict[str, object]:
        """The inverse, on the worker; ``InvalidPayload`` if this release no longer fits it."""
        self._check_names(payload)
        loaded: dict[str, object] = {}
        for name, value in payload.items():
            parameter = self._parameter(name)
            loaded[name] = value if type(value) in parameter.exact else parameter.load(value)
        return loaded

    def schema(self) -> dict[str, Any]:
        """JSON Schema of the payload, best effort: what has no schema is ``{}``."""
        properties: dict[str, Any] = {}
        definitions: dict[str, Any] = {}
        for name, parameter in self._parameters.items():
            schema = parameter.schema()
            definitions.update(schema.pop("$defs", {}))
            properties[name] = schema
        found: dict[str, Any] = {"type": "object", "properties": properties}
        found["required"] = list(self._required)
        found["additionalProperties"] = self.takes_any_name
        return found | ({"$defs": definitions} if definitions else {})

    def _add(self, declared: inspect.Parameter, annotation: object) -> None:
        if declared.kind in (declared.VAR_POSITIONAL, declared.POSITIONAL_ONLY):
            star = "*" if declared.kind is declared.VAR_POSITIONAL else "positional-only "
            raise InvalidPayload(
                f"task {self._task_name} takes {star}{declared.name}, but a payload knows its"
                " arguments by name: give each a name, or take one list"
                " (a decorator of the task needs functools.wraps)"
            )
        parameter = _Parameter.build(declared, annotation)
        if declared.kind is declared.VAR_KEYWORD:
            self._extra = parameter
            return
        self._parameters[declared.name] = parameter
        if declared.kind is declared.POSITIONAL_OR_KEYWORD:
            self._positional.append(declared.name)

    def _check_names(self, payload: Mapping[str, object]) -> None:
        if not isinstance(payload, Mapping):
            raise InvalidPayload("the payload is an object with the parameters of the task")
        for name in payload:
            if name not in self._parameters and (self._extra is None or not isinstance(name, str)):
                raise InvalidPayload(
                    f"task {self._task_name} has no such parameter", path=_step("$", str(name))
                )
        for name in self._required:
            if name not in payload:
                raise InvalidPayload(f"missing, task {self._task_name} needs it", path=f"$.{name}")

    def _parameter(self, name: str) -> _Parameter:
        found = self._parameters.get(name)
        if found is not None:
            return found
        assert self._extra is not None, "the names have been checked"
        return replace(self._extra, name=name)


@dataclass(frozen=True, slots=True)
class _Parameter:
    """One parameter. Values whose type is in ``exact`` need no conversion either way."""

    name: str
    required: bool
    default: object
    expected: str
    adapter: TypeAdapter[Any] | None
    exact: frozenset[type]
    problem: str

    @classmethod
    def build(cls, declared: inspect.Parameter, annotation: object) -> _Parameter:
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
        if self._is_json(value):
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
        raise self._error(f"does not come back from JSON as it was sent; {_ANNOTATE}")

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

    def _is_json(self, value: object) -> bool:
        try:
            _walk(value, 0)
        except _Refused as refused:
            if refused.foreign:
                return False
            raise refused.error(f"$.{self.name}") from None
        return True

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
            raise self._error(f"cannot be written as JSON; {_ANNOTATE}") from None
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
        path = _step(path, part)
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


class _Refused(Exception):
    """What is wrong, and on the way up the keys and indexes that lead there, innermost first."""

    def __init__(self, message: str, *, foreign: bool = False, step: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.foreign = foreign
        self.steps: list[str | int] = [] if step is None else [step]

    def error(self, path: str) -> InvalidPayload:
        for step in self.steps[: -_MAX_STEPS - 1 : -1]:
            path = _step(path, step)
        if len(self.steps) > _MAX_STEPS:
            path += "..."
        return InvalidPayload(self.message, path=path, malformed=not self.foreign)


class _Repeated(dict[str, object]):
    """An object of the wire with a key twice: refused by the walk, which knows the path."""

    key: str


def _walk(value: object, depth: int) -> None:
    if isinstance(value, str):
        _walk_text(value)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise _Refused("not a finite number")
    elif isinstance(value, int):
        if not -_INT_BOUND < value < _INT_BOUND:
            raise _Refused(f"an integer of more than {MAX_DIGITS} digits")
    elif isinstance(value, dict | list):
        if depth == MAX_DEPTH:
            raise _Refused(_TOO_DEEP)
        if isinstance(value, dict):
            _walk_keys(value)
        for at, item in value.items() if isinstance(value, dict) else enumerate(value):
            try:
                _walk(item, depth + 1)
            except _Refused as refused:
                refused.steps.append(at)
                raise
    elif value is not None:
        raise _Refused(f"{type(value).__name__} is not a JSON type; {_ANNOTATE}", foreign=True)


def _walk_keys(value: dict[Any, object]) -> None:
    for key in value:
        if not isinstance(key, str):
            kind = type(key).__name__
            raise _Refused(f"a key is {kind}, not text; {_ANNOTATE}", foreign=True)
        try:
            _walk_text(key)
        except _Refused as refused:
            refused.steps.append(key)
            raise
    if isinstance(value, _Repeated):
        raise _Refused("duplicate key", step=value.key)


def _walk_text(text: str) -> None:
    if "\0" in text:
        raise _Refused("a NUL character")
    if not text.isascii() and _SURROGATE.search(text):
        raise _Refused("a lone surrogate, which is no character")


def _step(path: str, step: str | int) -> str:
    if isinstance(step, int):
        return f"{path}[{step}]"
    if _PLAIN_NAME.fullmatch(step):
        return f"{path}.{step}"
    return f"{path}[{json.dumps(step[:64])}]"


def _field(payload: Mapping[str, object], name: str) -> bytes | None:
    return canonical(payload[name]) if name in payload else None


def _loads(text: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError:
        raise
    except ValueError:  # an integer too long for int(); costly to watch for, so only now
        return json.loads(text, object_pairs_hook=_object, parse_int=_integer)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    repeated = _Repeated(found)
    counts = Counter(key for key, _ in pairs)
    repeated.key = counts.most_common(1)[0][0]
    return repeated


def _integer(digits: str) -> int:
    return int(digits) if len(digits) <= MAX_DIGITS else _INT_BOUND


class _Storer:
    """Turns any value into JSON that can be stored, noting what it had to change."""

    def __init__(self, max_values: int) -> None:
        """``max_values`` bounds the work, also for what contains itself many times."""
        self.notes: dict[str, None] = {}
        self._left = max_values

    def note(self, text: str) -> None:
        self.notes[text] = None

    def store(self, value: object, depth: int = 0) -> object:
        self._left -= 1
        if self._left < 0:
            raise OverflowError("more values than bytes allowed")
        match value:
            case str():
                return self._text(value)
            case None | bool():
                return value
            case int() | float():
                return self._number(value)
            case dict() | list() | tuple() | set() | frozenset() if depth == MAX_DEPTH:
                self.note(f"cut at {MAX_DEPTH} levels")
                return f"<{type(value).__name__}>"
            case dict():
                return self._object(value, depth)
            case list() | tuple() | set() | frozenset():
                return [self.store(item, depth + 1) for item in value]
        return self._foreign(value, depth)

    def _text(self, text: str) -> str:
        clean = _clean(text)
        if clean != text:
            self.note("characters that cannot be stored were escaped")
        return clean

    def _number(self, value: float) -> object:
        if isinstance(value, float):
            if math.isfinite(value):
                return value
            self.note("NaN and Infinity became null")
            return None
        if -_INT_BOUND < value < _INT_BOUND:
            return value
        self.note(f"an integer of more than {MAX_DIGITS} digits became text")
        return f"<integer of {value.bit_length()} bits>"

    def _object(self, value: dict[Any, object], depth: int) -> dict[str, object]:
        found: dict[str, object] = {}
        for key, item in value.items():
            name = self._text(key) if isinstance(key, str) else self._key(key)
            while name in found:  # {1: ..., "1": ...} keeps both
                name += "'"
            found[name] = self.store(item, depth + 1)
        return found

    def _key(self, key: object) -> str:
        self.note("keys became text")
        return _clean(str(key))

    def _foreign(self, value: object, depth: int) -> object:
        if isinstance(value, Iterator):  # it may never end
            return self._unknown(value)
        try:
            plain = to_jsonable_python(value, fallback=self._unknown, inf_nan_mode="constants")
        except ValueError:
            return self._unknown(value)
        return self.store(plain, depth)

    def _unknown(self, value: object) -> str:
        self.note(f"{type(value).__name__} became text")
        return _as_text(value)


def _as_text(value: object) -> str:
    try:
        return _clean(_REPR.repr(value))
    except Exception:  # whatever a foreign __repr__ does
        return f"<{type(value).__name__}>"


def _clean(text: str) -> str:
    return text.replace("\0", "\\u0000").encode("utf-8", "backslashreplace").decode()


def _preview(text: str, max_bytes: int) -> str:
    """The beginning, as JSON text. Quoting at most doubles JSON, which has no raw controls."""
    kept = min(_PREVIEW_BYTES, max(0, max_bytes // 2 - 1))
    return dumps(text.encode()[:kept].decode(errors="ignore"))


_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels, or contains itself"
_REPR = reprlib.Repr(maxstring=1000, maxother=1000, maxlong=1000)
_SURROGATE = re.compile("[\ud800-\udfff]")
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_ANYTHING = (Any, object)
_SCALARS = (int, str, bool, float, NoneType)
_KNOWN_ERRORS = frozenset(get_args(ErrorType)) - {"value_error", "assertion_error"}
# What pydantic fills into its messages from the declaration, not from the value.
_SAFE_CONTEXT = frozenset(
    {"gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern", "expected"}
    | {"max_digits", "decimal_places", "whole_digits", "class_name", "class", "field_type"}
    | {"tz_expected", "expected_version", "expected_schemes", "discriminator", "expected_tags"}
)
_WRITER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_CANONICAL_WRITER = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True
)
