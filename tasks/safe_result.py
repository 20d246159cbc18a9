"""What a task returned, as JSON that can always be stored.

A result never fails its job: what JSON cannot hold is kept in a safe form with a note.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterator
from typing import Any

from pydantic_core import to_jsonable_python

from tasks.payload import MAX_PAYLOAD_BYTES
from tasks.strict_json import INT_BOUND, MAX_DEPTH, MAX_DIGITS, dumps

# A return value often becomes the next payload, so it has the same bound.
MAX_RESULT_BYTES = MAX_PAYLOAD_BYTES
_PREVIEW_BYTES = 4096


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
            case dict() | list() | tuple() | set() | frozenset():
                return self._collection(value, depth)
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
        if -INT_BOUND < value < INT_BOUND:
            return value
        self.note(f"an integer of more than {MAX_DIGITS} digits became text")
        return f"<integer of {value.bit_length()} bits>"

    def _collection(self, value: Any, depth: int) -> object:
        if depth == MAX_DEPTH:
            self.note(f"cut at {MAX_DEPTH} levels")
            return f"<{type(value).__name__}>"
        if isinstance(value, dict):
            return self._object(value, depth)
        return [self.store(item, depth + 1) for item in value]

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


_REPR = reprlib.Repr(maxstring=1000, maxother=1000, maxlong=1000)
