"""The bank of the demo: what it does on purpose, and that its books are honest."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from devtools.bank import LIKELIHOOD, MOST_FAULTS_PER_ORDER, Bank, Books, Fault, Pace, fault_of
from devtools.ports import LOOPBACK

GOOD, DECLINED = "4242424242424242", "4000000000000002"
QUICK = Pace(usual=(0.0, 0.0), slow=0.05, silent=5.0)
SEED = 3


@contextmanager
def running_bank(
    limit: int = 20, *, honours_keys: bool = True, pace: Pace = QUICK
) -> Iterator[str]:
    with Bank(0, Books(limit, honours_keys=honours_keys), seed=SEED, pace=pace) as bank:
        thread = threading.Thread(target=bank.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://{LOOPBACK}:{bank.server_address[1]}"
        finally:
            bank.shutdown()
            thread.join()


def charge(url: str, order_id: int, *, card: str = GOOD, amount: int = 100) -> httpx.Response:
    return httpx.post(
        f"{url}/charges",
        headers={"Idempotency-Key": f"key-{order_id}"},
        json={"order_id": order_id, "amount_cents": amount, "card": card},
        timeout=0.5,
    )


def books(url: str) -> dict:
    return httpx.get(f"{url}/books").json()


def order_with(fault: Fault) -> int:
    """An order whose first call meets the fault, and whose second does not."""
    return next(
        n
        for n in range(1, 10_000)
        if fault_of(SEED, n, 1) is fault and fault_of(SEED, n, 2) is Fault.NONE
    )


def test_faults_come_from_the_seed_alone():
    first = [fault_of(7, order, 1) for order in range(200)]
    assert first == [fault_of(7, order, 1) for order in range(200)]
    assert first != [fault_of(8, order, 1) for order in range(200)]


def test_every_fault_comes_about_as_often_as_it_says():
    seen = Counter(fault_of(1, order, 1) for order in range(5000))
    assert {fault: pytest.approx(n / 50, abs=2) for fault, n in seen.items()} == LIKELIHOOD


def test_an_order_meets_a_bounded_number_of_faults():
    assert {fault_of(1, order, MOST_FAULTS_PER_ORDER + 1) for order in range(500)} == {Fault.NONE}


def test_the_same_key_is_charged_once():
    order = order_with(Fault.NONE)
    with running_bank() as url:
        first, second = charge(url, order), charge(url, order)
        assert (first.status_code, second.status_code) == (201, 200)
        assert first.json()["id"] == second.json()["id"]
        assert len(books(url)["charges"]) == 1


def test_a_bank_that_forgets_keys_charges_every_call():
    order = order_with(Fault.NONE)
    with running_bank(honours_keys=False) as url:
        assert [charge(url, order).status_code for _ in range(2)] == [201, 201]
        assert len(books(url)["charges"]) == 2


@pytest.mark.parametrize(
    ("card", "amount", "reason"),
    [
        (DECLINED, 100, "card_declined"),
        (GOOD, 0, "amount_must_be_positive"),
        (GOOD, -5, "amount_must_be_positive"),
    ],
)
def test_a_refusal_charges_nothing(card: str, amount: int, reason: str):
    with running_bank() as url:
        answer = charge(url, order_with(Fault.NONE), card=card, amount=amount)
        assert (answer.status_code, answer.json()["reason"]) == (402, reason)
        assert books(url)["charges"] == []


def test_a_busy_bank_answers_503_and_charges_nothing():
    with running_bank() as url:
        assert charge(url, order_with(Fault.BUSY)).status_code == 503
        assert books(url)["charges"] == []


def test_a_reset_connection_was_not_charged():
    with running_bank() as url:
        with pytest.raises(httpx.ReadError, match="reset"):
            charge(url, order_with(Fault.RESET))
        assert books(url)["charges"] == []


@pytest.mark.parametrize(
    ("fault", "error"),
    [(Fault.HANGS_UP, httpx.RemoteProtocolError), (Fault.SILENT, httpx.ReadTimeout)],
)
def test_a_forgotten_answer_was_charged_and_the_next_call_is_told(fault: Fault, error: type):
    order = order_with(fault)
    with running_bank() as url:
        with pytest.raises(error):
            charge(url, order)
        assert len(books(url)["charges"]) == 1
        assert charge(url, order).status_code == 200
        assert len(books(url)["charges"]) == 1


def test_a_slow_answer_comes():
    with running_bank() as url:
        assert charge(url, order_with(Fault.SLOW)).status_code == 201
        (call,) = books(url)["calls"]
        assert call["ended"] - call["began"] >= QUICK.slow


def test_calls_above_the_limit_are_refused_and_written_down():
    orders = [n for n in range(1, 2000) if fault_of(SEED, n, 1) is Fault.NONE][:6]
    with running_bank(limit=2, pace=Pace(usual=(0.3, 0.3))) as url:
        with ThreadPoolExecutor(6) as pool:
            statuses = Counter(a.status_code for a in pool.map(lambda n: charge(url, n), orders))
        kept = books(url)
    assert statuses[429] == len(kept["violations"]) > 0
    assert kept["peak"] > kept["limit"] == 2
    assert len(kept["charges"]) == statuses[201]


def test_a_caller_who_hung_up_no_longer_counts():
    """Otherwise the demo would blame the relay for a thread of the bank that wakes up late."""
    here, there = socket.socketpair()
    kept = Books(limit=1)
    kept.open("a", 1, here)
    there.close()
    assert kept.open("b", 2).at_once == 1
    assert kept.page()["violations"] == []
    here.close()


def test_the_books_say_when_each_call_began_and_ended():
    before = time.time()
    with running_bank() as url:
        charge(url, order_with(Fault.NONE))
        (call,) = books(url)["calls"]
    assert before <= call["began"] <= call["ended"] <= time.time()
    assert call["status"] == 201


@pytest.mark.parametrize(
    ("headers", "body"),
    [({}, "{}"), ({"Idempotency-Key": "k"}, "no"), ({"Idempotency-Key": "k"}, "{}")],
)
def test_a_call_that_is_no_charge_is_refused(headers: dict, body: str):
    with running_bank() as url:
        assert httpx.post(f"{url}/charges", headers=headers, content=body).status_code == 400
        assert books(url)["calls"] == []
