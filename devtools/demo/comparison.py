"""Compares what the API answered, what the ledger says and what the bank has in its own books.

Pure: what happened comes in, the differences come out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from devtools.bank import refusal
from devtools.demo.ledger_view import JobSeen
from devtools.demo.orders_file import Order
from devtools.demo.posting import ACCEPTED, Answer

Books = Mapping[str, Any]


@dataclass(frozen=True)
class Difference:
    """One thing that is not as promised. ``order_id`` is None where it concerns no single order."""

    order_id: int | None
    what: str
    ledger: str = ""
    bank: str = ""


@dataclass(frozen=True)
class Evidence:
    """Everything that was seen."""

    orders: Sequence[Order]
    answers: Sequence[Answer]
    jobs: Sequence[JobSeen]
    books: Books


def is_good(order: Order) -> bool:
    return refusal(order.amount_cents, order.card) is None


def differences(seen: Evidence) -> list[Difference]:
    """Empty when every promise was kept."""
    return [*_per_order(seen), *_strangers(seen), *_too_many_at_once(seen.books)]


def _per_order(seen: Evidence) -> Iterator[Difference]:
    answers = _grouped((answer.order_id, answer) for answer in seen.answers)
    charges = _grouped((charge["order_id"], charge) for charge in seen.books["charges"])
    jobs = _grouped((job.key, job) for job in seen.jobs)
    for order in seen.orders:
        ids = {answer.job_id for answer in answers[order.order_id] if answer.job_id}
        yield from _of_answers(order, answers[order.order_id])
        if len(jobs[order.key]) != 1:
            yield Difference(order.order_id, f"{len(jobs[order.key])} jobs instead of one")
            continue
        job = jobs[order.key][0]
        if ids and ids != {job.id}:
            yield Difference(order.order_id, "answers named another job", ledger=job.id)
        yield from _of_money(order, job, charges[order.order_id])


def _of_answers(order: Order, answers: Sequence[Answer]) -> Iterator[Difference]:
    for answer in answers:
        if answer.problem:
            yield Difference(order.order_id, f"POST answered {answer.status}: {answer.problem}")
    accepted = [answer for answer in answers if answer.status == ACCEPTED]
    # None is possible and right: the answer was lost and the next call was told of a repeat.
    if len(accepted) > 1:
        yield Difference(order.order_id, f"accepted as new {len(accepted)} times")


def _of_money(order: Order, job: JobSeen, charges: Sequence[Any]) -> Iterator[Difference]:
    says = f"{job.state} after {job.runs} runs"
    found = _listed(charges)
    expected = "succeeded" if is_good(order) else "failed"
    if not job.is_terminal:
        yield Difference(order.order_id, "the job never ended", says, found)
    elif job.state != expected:
        what = f"the job should have {expected}: {job.error[:100]}".rstrip(": ")
        yield Difference(order.order_id, what, says, found)
    if not is_good(order):
        if charges:
            yield Difference(order.order_id, "a bad order was charged", says, found)
    elif not charges:
        yield Difference(order.order_id, "a good order was not charged", says, found)
    elif len(charges) > 1:
        yield Difference(order.order_id, f"charged {len(charges)} times", says, found)
    else:
        yield from _of_charge(order, job, charges[0])


def _of_charge(order: Order, job: JobSeen, charge: Any) -> Iterator[Difference]:
    bank = f"{charge['id']}: {charge['amount_cents']}"
    if charge["amount_cents"] != order.amount_cents:
        yield Difference(order.order_id, f"the amount is not {order.amount_cents}", "", bank)
    recorded = job.result or {}
    if job.state == "succeeded" and recorded.get("charge_id") != charge["id"]:
        ledger = f"charge {recorded.get('charge_id')}"
        yield Difference(order.order_id, "the ledger names another charge", ledger, bank)


def _strangers(seen: Evidence) -> Iterator[Difference]:
    """Jobs and charges that belong to no order."""
    known_ids = {order.order_id for order in seen.orders}
    known_keys = {order.key for order in seen.orders}
    for job in seen.jobs:
        if job.key not in known_keys:
            yield Difference(None, "a job nobody ordered", f"{job.key} {job.state}")
    for charge in seen.books["charges"]:
        if charge["order_id"] not in known_ids:
            yield Difference(charge["order_id"], "a charge nobody ordered", "", _listed([charge]))


def _too_many_at_once(books: Books) -> Iterator[Difference]:
    for call in books["violations"]:
        bank = f"call {call['number']} was number {call['at_once']} at once"
        yield Difference(call["order_id"], f"more than {books['limit']} calls at once", "", bank)


def _listed(charges: Iterable[Any]) -> str:
    return ", ".join(f"{c['id']}: {c['amount_cents']}" for c in charges) or "no charge"


def _grouped[K, V](pairs: Iterable[tuple[K, V]]) -> defaultdict[K, list[V]]:
    groups: defaultdict[K, list[V]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return groups
