"""Strict JSON: what can be read, stored and read again without a change.

Refused are NaN and Infinity, NUL, lone surrogates, keys that are no text or come twice,
integers of more than 4,300 digits and values nested without end. Everything else survives:
integers of any other size, the order of keys, text beyond the basic plane.

Messages name the place and what is wrong there, never the value: values can be secrets.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any

from tasks.errors import InvalidPayload

# Python's own limit for int <-> text; its cost is quadratic, and other readers stop there too.
MAX_DIGITS = 4300
INT_BOUND = 10**MAX_DIGITS
# Far below the recursion limits of Python and PostgreSQL, far above any honest document.
MAX_DEPTH = 100
# What to do about a value that is no JSON.
ANNOTATE = "annotate the parameter of the task with its type, or send plain JSON"
_MAX_STEPS = 20  # of a path in a message


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


def is_json(value: object, *, path: str = "$") -> bool:
    """False where there are values of other types; raises where JSON of its type is malformed."""
    try:
        _walk(value, 0)
    except _Refused as refused:
        if refused.foreign:
            return False
        raise refused.error(path) from None
    return True


def dumps(value: object) -> str:
    """Compact JSON, keys in the order given. ``value`` has passed ``check_json``."""
    return _WRITER.encode(value)


def canonical(value: object) -> bytes:
    """One spelling for fingerprints: keys sorted; ``1``, ``1.0``, ``"1"`` and ``true`` differ."""
    return _CANONICAL_WRITER.encode(value).encode()


def path_to(path: str, step: str | int) -> str:
    """The JSON path of a key or an index under ``path``."""
    if isinstance(step, int):
        return f"{path}[{step}]"
    if _PLAIN_NAME.fullmatch(step):
        return f"{path}.{step}"
    return f"{path}[{json.dumps(step[:64])}]"


class _Refused(Exception):
    """What is wrong, and on the way up the keys and indexes that lead there, innermost first."""

    def __init__(self, message: str, *, foreign: bool = False, step: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.foreign = foreign
        self.steps: list[str | int] = [] if step is None else [step]

    def error(self, path: str) -> InvalidPayload:
        for step in self.steps[: -_MAX_STEPS - 1 : -1]:
            path = path_to(path, step)
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
        if not -INT_BOUND < value < INT_BOUND:
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
        raise _Refused(f"{type(value).__name__} is not a JSON type; {ANNOTATE}", foreign=True)


def _walk_keys(value: dict[Any, object]) -> None:
    for key in value:
        if not isinstance(key, str):
            kind = type(key).__name__
            raise _Refused(f"a key is {kind}, not text; {ANNOTATE}", foreign=True)
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
    return int(digits) if len(digits) <= MAX_DIGITS else INT_BOUND


_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels, or contains itself"
_SURROGATE = re.compile("[\ud800-\udfff]")
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_WRITER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_CANONICAL_WRITER = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True
)
