"""The example: what the bank's answers make of a capture."""

from __future__ import annotations

import pytest

from orders import bank
from orders.tasks import capture
from project import http
from tasks.testing import run_jobs


@pytest.mark.django_db(transaction=True)
def test_a_declined_card_fails_for_good_and_waits_for_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def decline(key: str, **order: object) -> bank.Charge:
        raise bank.Declined("card_declined")

    monkeypatch.setattr(bank, "charge", decline)
    capture.delay(order_id=7, amount_cents=4990, card="4000000000000002")
    [job] = run_jobs()
    assert (job.state, job.attempts, job.dead_letter) == ("failed", 1, False)
    assert job.error_message == "the bank declined: card_declined"


def test_its_client_is_one_that_the_deploy_check_looks_at() -> None:
    assert bank.CLIENT in http.BUILT
