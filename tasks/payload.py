"""The payload of a job: the text to store, what tells a repeat from a conflict, what is shown."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from tasks.errors import InvalidPayload
from tasks.strict_json import canonical, dumps

# A payload names work, it does not carry it: a row this size still fits a few TOAST pages, and
# ten thousand waiting jobs a few gigabytes. Larger things belong in object storage.
MAX_PAYLOAD_BYTES = 256 * 1024
MASK = "••••"


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


def _field(payload: Mapping[str, object], name: str) -> bytes | None:
    return canonical(payload[name]) if name in payload else None
