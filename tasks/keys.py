"""Idempotency keys: the caller's names for intents, and how they are derived.

A derived key never names two intents: what is joined is escaped, so ``("a:b", "c")`` and
``("a", "b:c")`` differ, and what is too long ends in a hash of the whole.
"""

from __future__ import annotations

import hashlib
import math
import re
import uuid
from collections.abc import Container, Mapping
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from string import Formatter

from tasks.errors import InvalidKey, InvalidPayload
from tasks.payload import fingerprint

# Fits the column, an HTTP header line and every log viewer.
MAX_KEY_LENGTH = 255


def check_key(key: object) -> str:
    """``key`` itself: 1-255 visible ASCII characters, case matters. Never echoes a bad one."""
    if not isinstance(key, str):
        raise InvalidKey(f"{_RULE}, not {type(key).__name__}")
    if not 1 <= len(key) <= MAX_KEY_LENGTH:
        raise InvalidKey(f"{_RULE}; this one has {len(key)}")
    bad = _NOT_VISIBLE.search(key)
    if bad:
        raise InvalidKey(f"{_RULE}; character {bad.start() + 1} of {len(key)} is not one")
    return str(key)


def fresh_key() -> str:
    """A key nobody has used: the call is an intent of its own."""
    return str(uuid.uuid4())


def idempotency_key(*parts: object) -> str:
    """One key of readable parts: ``idempotency_key("invoice", 7, date.today())``.

    Parts are text, numbers, UUIDs, dates, times and enums. Empty ones are refused: a key
    made of an unset id would swallow every other intent that has none.
    """
    if not parts:
        raise InvalidKey("a key needs at least one part")
    texts = [_part_text(part, number) for number, part in enumerate(parts, start=1)]
    return _fitted(":".join(_escaped(text, ":") for text in texts))


def content_key(task_name: str, payload: Mapping[str, object], prefix: str = "") -> str:
    """A key of task and payload: the same content is the same intent. ``payload`` is dumped."""
    digest = fingerprint(task_name, payload)
    return check_key(f"{prefix}:{digest}" if prefix else digest)


def key_from_template(template: str, payload: Mapping[str, object], task: str) -> str:
    """``"capture:{order_id}"`` filled from the dumped payload of ``task``.

    Fields are looked up in JSON data only (``{order.id}`` is a key, ``{items[0]}`` an index),
    never as attributes. ``InvalidPayload`` names a field that is missing, null, empty or no
    plain value.
    """
    parsed = _parsed(template)
    texts = [_field_text(field, payload, task) for field in parsed.fields]
    filled = [_escaped(text, parsed.reserved) for text in texts]
    return _fitted("".join(map("".join, zip(parsed.literals, [*filled, ""], strict=True))))


def check_template(template: str, parameters: Container[str]) -> None:
    """For the declaration of a task: ``InvalidKey`` if its key template can never work."""
    for field in _parsed(template).fields:
        if field[0] not in parameters:
            raise InvalidKey(f"key template {template!r}: {field[0]} is no parameter of the task")


def fields_of(template: str) -> frozenset[str]:
    """The parameters that are part of the key."""
    return frozenset(str(field[0]) for field in _parsed(template).fields)


def window_keys(
    task: str, tenant: str, payload: Mapping[str, object], window_s: float, now_s: float
) -> tuple[str, str]:
    """Keys of the current window and the one before, for tasks with ``dedupe_window``.

    Time is cut into windows of ``window_s`` seconds; ``now_s`` is the clock of the database, as
    a Unix time. A job is inserted under the first key. Before that the second is looked up: two
    calls less than ``window_s`` apart lie in the same window or in neighbouring ones, so a job
    found there *and created less than ``window_s`` ago* is the answer to a repeat. Racing calls
    on the two sides of an edge do not see each other's open transactions; a caller that wants
    to exclude that too first takes a transaction lock on what both keys share, all up to the
    last ``:``.
    """
    if not (math.isfinite(window_s) and window_s > 0):
        raise ValueError("a dedupe window is a positive number of seconds")
    intent = hashlib.sha256(tenant.encode() + b"\0" + fingerprint(task, payload).encode())
    bucket = math.floor(now_s / window_s)
    stem = f"window:{intent.hexdigest()}:{window_s:g}"
    return f"{stem}:{bucket}", f"{stem}:{bucket - 1}"


@dataclass(frozen=True, slots=True)
class _Template:
    """Literals around fields (one literal more than fields); a field is a name and its steps."""

    literals: tuple[str, ...]
    fields: tuple[tuple[str | int, ...], ...]
    reserved: str


@lru_cache(maxsize=1024)
def _parsed(template: str) -> _Template:
    try:
        pieces = list(Formatter().parse(template))
    except ValueError as exc:
        raise InvalidKey(f"key template {template!r}: {exc}") from None
    literals, fields = [""], []
    for literal, field, spec, conversion in pieces:
        literals[-1] += literal
        if field is None:
            continue
        if spec or conversion or not _FIELD.fullmatch(field):
            raise InvalidKey(f"key template {template!r}: {{{field}}} is no plain field")
        fields.append(_steps(field))
        literals.append("")
    between = literals[1:-1]
    if _NOT_VISIBLE.search("".join(literals)) or "%" in "".join(literals):
        raise InvalidKey(f"key template {template!r}: text is visible ASCII without %")
    if not fields or not all(map(_SEPARATOR.search, between)):
        # Without one, {a}{b} of "x", "yz" and of "xy", "z" are one key.
        raise InvalidKey(f"key template {template!r}: needs fields, with ':' or '-' between them")
    return _Template(tuple(literals), tuple(fields), "".join(_SEPARATOR.findall("".join(between))))


def _steps(field: str) -> tuple[str | int, ...]:
    return tuple(int(s) if s.isdecimal() else s for s in re.findall(r"\w+", field, re.ASCII))


def _field_text(field: tuple[str | int, ...], payload: Mapping[str, object], task: str) -> str:
    value: object = payload
    for step in field:
        value = _child(value, step)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float) or (isinstance(value, str) and value):
        return str(value)
    path = "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in field)
    found = "missing, null or empty" if value in (None, "") else f"a {type(value).__name__}"
    raise InvalidPayload(f"{found}, but the key of task {task} is made of it", path=path)


def _child(value: object, step: str | int) -> object:
    if isinstance(step, str):
        return value.get(step) if isinstance(value, Mapping) else None
    return value[step] if isinstance(value, list) and step < len(value) else None


def _part_text(part: object, number: int) -> str:
    if isinstance(part, Enum):
        return _part_text(part.value, number)
    if isinstance(part, bool):
        return "true" if part else "false"
    if isinstance(part, date | time):
        return part.isoformat()
    if isinstance(part, str | int | float | Decimal | uuid.UUID) and str(part):
        return str(part)
    kind = "empty" if part in (None, "") else f"a {type(part).__name__}"
    raise InvalidKey(f"part {number} of the key is {kind}; pass what identifies it, e.g. its id")


def _escaped(text: str, reserved: str) -> str:
    """Percent-encodes ``%``, ``reserved`` and all that is not visible ASCII."""
    if text.isalnum() and text.isascii():
        return text
    return "".join(
        c if "!" <= c <= "~" and c != "%" and c not in reserved else _percent(c) for c in text
    )


def _percent(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


def _fitted(key: str) -> str:
    """A key that is too long keeps its beginning. ``%s`` is no escape, so no short key has it."""
    if len(key) <= MAX_KEY_LENGTH:
        return key
    tail = "%sha256=" + hashlib.sha256(key.encode()).hexdigest()
    return key[: MAX_KEY_LENGTH - len(tail)] + tail


_RULE = f"a key is 1-{MAX_KEY_LENGTH} visible ASCII characters"
_NOT_VISIBLE = re.compile(r"[^!-~]")
_SEPARATOR = re.compile(r"[^A-Za-z0-9]")
_FIELD = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*|\[[0-9]{1,9}\])*", re.ASCII)
