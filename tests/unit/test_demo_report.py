"""What the demo finds when the ledger and the bank's books disagree, and how it says so."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from devtools.demo.comparison import Difference, Evidence, differences
from devtools.demo.ledger_view import JobSeen, Tally
from devtools.demo.orders_file import Order
from devtools.demo.posting import Answer
from devtools.demo.progress import display
from devtools.demo.report import ROWS_OF_A_KIND, Summary, percentile, show, show_verdict

GOOD = Order(1, 500, "4242424242424242")
BAD = Order(2, 700, "4000000000000002")
ORDERS = [GOOD, BAD]
ANSWERS = [Answer(n, status, f"job-{n}") for n in (1, 2) for status in (202, 200)]
CAPTURED = JobSeen(
    "job-1", GOOD.key, "succeeded", 2, 1, 0.5, {"charge_id": "ch_1", "amount_cents": 500}, ""
)
REFUSED = JobSeen("job-2", BAD.key, "failed", 1, 0, 1.5, None, "the bank declined: card_declined")
CHARGE = {"id": "ch_1", "key": "k", "order_id": 1, "amount_cents": 500}


def page(**changed: Any) -> dict[str, Any]:
    return {
        "limit": 20,
        "peak": 3,
        "charges": [CHARGE],
        "violations": [],
        "calls": [
            {"order_id": 1, "fault": "503", "status": 503},
            {"order_id": 1, "fault": "none", "status": 201},
            {"order_id": 2, "fault": "none", "status": 402},
        ],
        **changed,
    }


def evidence(**changed: Any) -> Evidence:
    seen = Evidence(orders=ORDERS, answers=ANSWERS, jobs=[CAPTURED, REFUSED], books=page())
    return replace(seen, **changed)


def found(**changed: Any) -> list[tuple[int | None, str]]:
    return [(d.order_id, d.what) for d in differences(evidence(**changed))]


def printed(width: int = 100) -> Console:
    return Console(file=io.StringIO(), width=width, highlight=False)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_run_that_kept_every_promise_has_no_differences():
    assert found() == []


def test_a_good_order_charged_twice_is_a_difference():
    twice = [CHARGE, {**CHARGE, "id": "ch_2"}]
    assert found(books=page(charges=twice)) == [(1, "charged 2 times")]


def test_a_success_without_a_charge_is_a_difference():
    assert found(books=page(charges=[])) == [(1, "a good order was not charged")]


def test_a_charged_bad_order_is_a_difference():
    charges = [CHARGE, {"id": "ch_2", "key": "k2", "order_id": 2, "amount_cents": 700}]
    assert found(books=page(charges=charges)) == [(2, "a bad order was charged")]


def test_a_wrong_amount_is_a_difference():
    charges = [{**CHARGE, "amount_cents": 501}]
    assert found(books=page(charges=charges)) == [(1, "the amount is not 500")]


def test_another_charge_id_in_the_ledger_is_a_difference():
    job = replace(CAPTURED, result={"charge_id": "ch_9"})
    assert found(jobs=[job, REFUSED]) == [(1, "the ledger names another charge")]


@pytest.mark.parametrize("state", ["queued", "dispatched", "running"])
def test_a_job_that_never_ended_is_a_difference(state: str):
    assert found(jobs=[replace(CAPTURED, state=state), REFUSED]) == [(1, "the job never ended")]


def test_a_good_order_whose_job_failed_is_a_difference_with_its_error():
    job = replace(CAPTURED, state="failed", result=None, error="status 503")
    assert found(jobs=[job, REFUSED]) == [(1, "the job should have succeeded: status 503")]


def test_a_bad_order_whose_job_succeeded_is_a_difference():
    job = replace(REFUSED, state="succeeded", error="")
    assert found(jobs=[CAPTURED, job]) == [(2, "the job should have failed")]


def test_a_lost_job_and_a_second_job_are_differences():
    assert found(jobs=[CAPTURED]) == [(2, "0 jobs instead of one")]
    twin = replace(CAPTURED, id="job-3")
    assert found(jobs=[CAPTURED, twin, REFUSED]) == [(1, "2 jobs instead of one")]


def test_a_key_accepted_as_new_twice_is_a_difference():
    answers = [Answer(1, 202, "job-1"), Answer(1, 202, "job-1"), *ANSWERS[2:]]
    assert found(answers=answers) == [(1, "accepted as new 2 times")]


def test_a_repeat_with_another_id_is_a_difference():
    answers = [Answer(1, 202, "job-1"), Answer(1, 200, "job-7"), *ANSWERS[2:]]
    assert found(answers=answers) == [(1, "answers named another job")]


def test_a_refused_post_is_a_difference_with_its_reason():
    answers = [*ANSWERS, Answer(1, 500, problem="broken")]
    assert found(answers=answers) == [(1, "POST answered 500: broken")]


def test_a_job_or_a_charge_nobody_ordered_is_a_difference():
    stranger = replace(CAPTURED, id="job-9", key="capture:9")
    charges = [CHARGE, {"id": "ch_2", "key": "k", "order_id": 9, "amount_cents": 1}]
    assert found(jobs=[CAPTURED, REFUSED, stranger], books=page(charges=charges)) == [
        (None, "a job nobody ordered"),
        (9, "a charge nobody ordered"),
    ]


def test_a_call_above_the_limit_is_a_difference():
    violations = [{"number": 40, "order_id": 1, "at_once": 21}]
    (difference,) = differences(evidence(books=page(violations=violations, peak=21)))
    assert difference.what == "more than 20 calls at once"
    assert difference.bank == "call 40 was number 21 at once"


def test_the_summary_counts_what_was_answered_and_what_became_of_it():
    summary = Summary.of(evidence(), seconds=4.0)
    assert summary == Summary(
        accepted=2,
        repeats=2,
        retries=1,
        captured=1,
        failed=1,
        seconds=4.0,
        pickup_p50_s=1.0,
        pickup_p95_s=pytest.approx(1.45),
    )


@pytest.mark.parametrize(("values", "expected"), [([], 0.0), ([3.0], 3.0), ([1.0, 3.0], 2.0)])
def test_a_percentile_of_few_values(values: list[float], expected: float):
    assert percentile(values, 50) == expected


def test_the_tables_say_why_orders_failed_and_how_many_calls_there_were():
    console = printed()
    show(console, evidence(), 4.0)
    assert "1 card_declined" in text_of(console)
    assert "answered 503" in text_of(console)
    assert "the limit is 20" in text_of(console)


def test_the_verdict_names_the_numbers():
    console = printed(width=200)
    show_verdict(console, evidence(), [])
    assert "1 good orders, exactly one charge each; 1 bad orders, no charge" in text_of(console)


def test_a_frequent_difference_does_not_hide_a_rare_one():
    many = [Difference(n, "charged 2 times") for n in range(ROWS_OF_A_KIND + 5)]
    console = printed()
    show_verdict(console, evidence(), [*many, Difference(77, "the job never ended")])
    assert "charged 2 times: 5 more" in text_of(console)
    assert "77" in text_of(console)
    assert f"{ROWS_OF_A_KIND + 6} differences" in text_of(console)


def test_brackets_in_an_error_are_text():
    console = printed()
    show_verdict(console, evidence(), [Difference(1, "no answer: [Errno 111]", "[/red]")])
    assert "[Errno 111]" in text_of(console)
    assert "[/red]" in text_of(console)


def test_progress_without_a_terminal_is_plain_lines():
    console = printed()
    with display(console, calls=4, orders=2) as progress:
        progress.update(1, Tally())
        progress.update(2, Tally())  # too soon after the last line
        progress.update(4, Tally(accepted=2, succeeded=1, failed=1, retries=3))
    assert text_of(console).splitlines() == [
        "  posted 1/4, finished 0/2: 0 captured, 0 failed, 0 retries",
        "  posted 4/4, finished 2/2: 1 captured, 1 failed, 3 retries",
    ]


def test_progress_on_a_terminal_is_bars():
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    with display(console, calls=4, orders=2) as progress:
        progress.update(4, Tally(accepted=2, succeeded=2))
    assert "4/4" in text_of(console)
    assert "2 captured" in text_of(console)
