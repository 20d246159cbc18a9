"""How long yet, decided without a database."""

from __future__ import annotations

import pytest

from tasks.limits import Rate
from tasks.waiting import in_words, pace_now


@pytest.mark.parametrize(
    ("per_s", "age_s", "expected"),
    [
        (100.0, 0.0, 100.0),
        (100.0, 1.0, 81.9),
        (100.0, 6.0, None),  # nothing has gone for much longer than usual
        (0.1, 10.0, 0.1),  # the next one is only due now
        (0.1, 20.0, 0.05),
        (0.1, 36.0, None),
        (0.0, 0.0, None),
    ],
)
def test_a_pace_fades_while_nothing_goes(
    per_s: float, age_s: float, expected: float | None
) -> None:
    assert pace_now(per_s, age_s) == (
        None if expected is None else pytest.approx(expected, rel=0.01)
    )


@pytest.mark.parametrize(
    ("per_s", "words"),
    [
        (50.0, "50 times a second"),
        (0.1, "6 times a minute"),
        (100 / 3600, "100 times an hour"),
        (1 / 7200, "every 7200 seconds"),
    ],
)
def test_a_rate_is_told_in_whole_numbers(per_s: float, words: str) -> None:
    assert in_words(Rate(per_s)) == words
