"""What may go by rate, pause and breaker, decided without a database."""

from __future__ import annotations

import math

import pytest

from tasks.breaker import Runs, is_broken, least_failures, open_for_s, short
from tasks.limits import LONGEST_PAUSE_S, Rate, Status, allowed, bounded_s, rate_of, tokens_now
from tasks.topology import Breaker, Downstream, Queue, Topology

FIFTY = Rate(50.0)
SIX_A_MINUTE = Rate(0.1)
OPEN = Status(is_open=True, open_s=5.0)
HALF_OPEN = Status(is_open=True)


@pytest.mark.parametrize(
    ("text", "per_s", "burst"),
    [("50/s", 50.0, 50.0), ("6/m", 0.1, 1.0), ("36000/h", 10.0, 10.0), (2.5, 2.5, 2.5),
     ("7", 7.0, 7.0)],
)  # fmt: skip
def test_a_rate_bursts_for_a_second_and_by_at_least_one(
    text: str | float, per_s: float, burst: float
) -> None:
    rate = rate_of(text)
    assert rate is not None
    assert [rate.per_s, rate.burst] == pytest.approx([per_s, burst])


@pytest.mark.parametrize("text", [None, 0, "0/s"])
def test_no_rate_is_no_limit(text: str | float | None) -> None:
    assert rate_of(text) is None


def test_a_rate_of_nothing_is_refused_in_the_topology() -> None:
    with pytest.raises(ValueError, match="not like '50/s'"):
        Downstream("bank", rate="0/s")


@pytest.mark.parametrize(
    ("status", "rate", "wanted", "goes"),
    [
        (Status(), None, 200, 200),
        (Status(), FIFTY, 200, 50),
        (Status(), FIFTY, 20, 20),
        (Status(), SIX_A_MINUTE, 4, 1),
        (Status(tokens=0.0, counted_ago_s=9.9), SIX_A_MINUTE, 4, 0),
        (Status(tokens=0.0, counted_ago_s=10.0), SIX_A_MINUTE, 4, 1),
        (Status(tokens=0.0, counted_ago_s=3600.0), SIX_A_MINUTE, 4, 1),
        (Status(tokens=3.0, counted_ago_s=0.5), FIFTY, 200, 28),
        (Status(tokens=50.0, counted_ago_s=-30.0), FIFTY, 200, 50),
        (Status(tokens=50.0), SIX_A_MINUTE, 200, 1),
        (Status(tokens=-2.0), FIFTY, 1, 0),
        (Status(paused_s=0.1), None, 200, 0),
        (Status(paused_s=0.1), FIFTY, 200, 0),
        (OPEN, None, 200, 0),
        (HALF_OPEN, None, 200, 1),
        (HALF_OPEN, FIFTY, 200, 1),
        (Status(is_open=True, tokens=0.0), FIFTY, 200, 0),
        (Status(is_open=True, is_probing=True), None, 200, 0),
        (Status(is_open=True, paused_s=1.0), None, 200, 0),
        (HALF_OPEN, None, 0, 0),
    ],
)
def test_what_may_go(status: Status, rate: Rate | None, wanted: int, goes: int) -> None:
    assert allowed(status, wanted, rate=rate, obeys_breaker=True) == goes


def test_a_limit_whose_breaker_was_taken_out_of_the_topology_is_not_open() -> None:
    assert allowed(OPEN, 7, obeys_breaker=False) == 7


def test_tokens_never_exceed_the_burst() -> None:
    assert tokens_now(Status(tokens=0.0, counted_ago_s=1e9), FIFTY) == 50.0


@pytest.mark.parametrize(
    ("asked", "kept"),
    [(5.0, 5.0), (-1.0, 0.0), (math.nan, 0.0), (math.inf, LONGEST_PAUSE_S), (0.25, 0.25)],
)
def test_a_pause_is_between_now_and_a_day(asked: float, kept: float) -> None:
    assert bounded_s(asked) == kept


# --- the breaker -------------------------------------------------------------------------

BREAKER = Breaker(failure_share=0.5, least_runs=20, open_s=10.0, longest_open_s=60.0)


@pytest.mark.parametrize(
    ("runs", "broken"),
    [
        (Runs(0, 100), False),
        (Runs(19), False),
        (Runs(20), True),
        (Runs(10, 10), True),
        (Runs(9, 11), False),
        (Runs(10, 11), False),
        (Runs(500, 499), True),
        (Runs(500, 501), False),
    ],
)
def test_it_is_broken_from_a_share_of_enough_runs(runs: Runs, broken: bool) -> None:
    assert is_broken(BREAKER, runs) is broken


def test_fewer_failures_than_can_open_it_are_not_looked_at_further() -> None:
    assert least_failures(BREAKER) == 10
    assert least_failures(Breaker(failure_share=0.01, least_runs=1)) == 1


@pytest.mark.parametrize(
    ("openings", "seconds"), [(1, 10.0), (2, 20.0), (3, 40.0), (4, 60.0), (5_000, 60.0)]
)
def test_each_probe_that_fails_doubles_the_pause(openings: int, seconds: float) -> None:
    assert open_for_s(BREAKER, openings) == seconds


def test_an_error_is_told_by_its_name_alone() -> None:
    assert short("orders.bank.BankUnavailable") == "BankUnavailable"
    assert short("") == "unknown"


def test_a_downstream_knows_who_calls_it() -> None:
    bank, mail = Downstream("bank"), Downstream("mail")
    topology = Topology.of(
        [Queue("a", downstream=bank), Queue("b"), Queue("c", downstream=mail), Queue("d", bank)]
    )
    assert topology.downstreams == [bank, mail]
    assert topology.calling(bank) == ["a", "d"]
