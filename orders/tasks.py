"""The background work of orders."""

from __future__ import annotations

from typing import Any

from celery import shared_task

from orders import bank
from tasks.errors import Fail
from tasks.run import current_run
from tasks.task import LedgerTask


@shared_task(
    base=LedgerTask,
    queue="payments",
    key="capture:{order_id}",
    sensitive=("card",),
    api=True,
    autoretry_for=(bank.Unavailable,),
    retry_backoff=2,
    retry_backoff_max=300,
    max_retries=8,
)
def capture(order_id: int, amount_cents: int, card: str) -> dict[str, Any]:
    """Charge an order once, however often this runs: the bank sees the same key each time."""
    key = current_run().downstream_key("charge")
    try:
        charge = bank.charge(key, order_id=order_id, amount_cents=amount_cents, card=card)
    except bank.Declined as exc:
        # An answer, not an accident: no operator could make anything else of it.
        raise Fail(f"the bank declined: {exc}", dead_letter=False) from exc
    return {"charge_id": charge.id, "amount_cents": charge.amount_cents}
