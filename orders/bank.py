"""The client of the bank. It never retries: the task owns that."""

from __future__ import annotations

import os
from dataclasses import dataclass

import httpx
from django.core.exceptions import ImproperlyConfigured

from project.http import client

# Seconds, each for connecting and for the silence between two bytes. Well below the time limit
# of the queue, so that the task, not its executioner, decides what a slow bank means.
TIMEOUT = httpx.Timeout(3.0, connect=2.0)
# Made once, before the worker forks: it takes longer than a hundred calls. It has no connection
# yet, so each process opens its own.
CLIENT = client(TIMEOUT)


class Unavailable(Exception):
    """No answer, or one that says to come back: try again with the same key."""


class Declined(Exception):
    """The bank's final no."""


@dataclass(frozen=True)
class Charge:
    id: str
    amount_cents: int


def charge(key: str, *, order_id: int, amount_cents: int, card: str) -> Charge:
    """Charge a card once per ``key``. Raises Unavailable or Declined."""
    try:
        answer = CLIENT.post(
            f"{address()}/charges",
            headers={"Idempotency-Key": key},
            json={"order_id": order_id, "amount_cents": amount_cents, "card": card},
        )
    except httpx.TransportError as exc:
        raise Unavailable(type(exc).__name__) from exc
    if answer.status_code in (402, 422):
        raise Declined(answer.json()["reason"])
    if answer.status_code not in (200, 201):
        raise Unavailable(f"status {answer.status_code}")
    body = answer.json()
    return Charge(body["id"], body["amount_cents"])


def address() -> str:
    given = os.environ.get("BANK_URL")
    if not given:
        raise ImproperlyConfigured("BANK_URL, the address of the bank, is not set")
    return given
