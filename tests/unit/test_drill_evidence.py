"""What the witness's books prove, and what a drill accepts as an excuse."""

from __future__ import annotations

from dataclasses import replace

from devtools.drill.books import (
    Books,
    Effect,
    Run,
    began_too_early,
    most_in_a_second,
    overlaps,
    runs_by_job,
    second_effects,
)
from devtools.drill.evidence import Evidence, Freeze, JobRow, Kill, differences
from devtools.drill.traffic import Answer, Order

JOB = "01a22ad0-43d2-7788-8dc5-dadb53a22a98"


def run(number: int, began: float, ended: float | None, how: str = "done", pid: int = 0) -> Run:
    task = "devtools.drilled.tasks.bare"
    return Run(number, JOB, task, pid or 100 + number, "r1", False, began, ended, how)


def evidence(
    *runs: Run,
    effects: tuple[tuple[int, str] | tuple[int, str, float], ...] = ((0, ""),),
    state: str = "succeeded",
    attempts: int = 1,
    expects: str = "succeeded",
    kills: tuple[Kill, ...] = (),
    freezes: tuple[Freeze, ...] = (),
    rows: int = 1,
) -> Evidence:
    """One job, its runs, and the effects of those (number of the run, key, perhaps when)."""
    made = [Effect(JOB, n, key, *(at or [runs[n].began + 0.5])) for n, key, *at in effects]
    row = JobRow(JOB, "k", state, "", attempts, 0, "")
    answer = Answer(Order("k", "t", {}, expects), JOB, 0.01, 1)
    books = Books(list(runs), made)
    return Evidence([answer], [row] * rows, books, kills, freezes, [])


def kinds_of(seen: Evidence) -> list[str]:
    return [row.what for row in differences(seen)]


def test_one_run_with_one_effect_is_as_expected() -> None:
    assert kinds_of(evidence(run(0, 1, 2))) == []


def test_two_runs_at_the_same_moment_are_found() -> None:
    seen = evidence(run(0, 1, 3), run(1, 2, 4))
    assert len(overlaps(seen.books.runs)) == 1
    assert "two runs at once" in kinds_of(seen)


def test_a_run_that_begins_when_the_other_has_ended_is_no_overlap() -> None:
    assert overlaps([run(0, 1, 2), run(1, 2, 3)]) == []


def test_a_run_that_never_ended_overlaps_all_later_ones() -> None:
    assert len(overlaps([run(0, 1, None), run(1, 50, 51)])) == 1


def test_a_frozen_run_may_overlap_until_a_second_after_it_woke() -> None:
    def woke(ended: float) -> Evidence:
        frozen, other = run(0, 1, ended, "died", pid=7), run(1, 6, 20)
        freezes = (Freeze(frozenset({7}), 2, 10),)
        return evidence(frozen, other, effects=((1, ""),), freezes=freezes)

    assert kinds_of(woke(10.9)) == []
    assert "two runs at once" in kinds_of(woke(11.5))


def test_a_second_effect_is_excused_where_the_process_died_before_it_could_settle() -> None:
    twice = ((0, ""), (1, ""))
    kill = Kill(7, 2.5)
    died = evidence(run(0, 1, 2.5, "died", pid=7), run(1, 9, 10), effects=twice, kills=(kill,))
    assert kinds_of(died) == []
    settled = evidence(run(0, 1, 2.5), run(1, 9, 10), effects=twice)
    assert kinds_of(settled) == ["effect twice"]


def test_a_process_killed_between_the_end_of_the_body_and_the_settle_is_an_excuse_too() -> None:
    seen = evidence(run(0, 1, 2, pid=7), run(1, 9, 10), effects=((0, ""), (1, "")),
                    kills=(Kill(7, 2.01),))  # fmt: skip
    assert kinds_of(seen) == []


def woken(*effects: tuple[int, str, float], frozen: Run | None = None) -> Evidence:
    """Run 0 was frozen from 2 to 10, run 1 took over at 6 and ended at 20."""
    freezes = (Freeze(frozenset({7}), 2, 10),)
    first = frozen or run(0, 1, 10.9, "died", pid=7)
    return evidence(first, run(1, 6, 20), effects=effects, freezes=freezes)


def test_a_frozen_run_may_do_it_again_until_a_second_after_it_woke() -> None:
    assert kinds_of(woken((1, "", 9.0), (0, "", 10.8))) == []
    late = run(0, 1, 11.5, "died", pid=7)
    assert "effect twice" in kinds_of(woken((1, "", 9.0), (0, "", 11.2), frozen=late))


def test_it_may_be_done_again_after_a_run_that_froze_or_had_just_woken() -> None:
    assert kinds_of(woken((0, "", 1.5), (1, "", 12.0))) == []
    assert kinds_of(woken((0, "", 10.8), (1, "", 12.0))) == []
    late = run(0, 1, 11.5, "died", pid=7)
    assert "effect twice" in kinds_of(woken((0, "", 11.2), (1, "", 12.0), frozen=late))


def test_a_run_that_had_ended_before_the_freeze_is_not_excused_by_it() -> None:
    ended = run(0, 1, 1.9, pid=7)
    assert kinds_of(woken((0, "", 1.5), (1, "", 12.0), frozen=ended)) == ["effect twice"]


def test_a_freeze_does_not_excuse_a_successor_that_began_before_it() -> None:
    freezes = (Freeze(frozenset({7}), 2, 10),)
    twice = ((1, "", 1.5), (0, "", 10.5))
    seen = evidence(
        run(0, 1, 10.9, "died", pid=7), run(1, 1.2, 1.8), effects=twice, freezes=freezes
    )
    assert "effect twice" in kinds_of(seen)


def test_with_a_key_there_is_no_excuse() -> None:
    seen = evidence(run(0, 1, 2.5, "died", pid=7), run(1, 9, 10), effects=((0, "a"), (1, "b")),
                    kills=(Kill(7, 2.5),))  # fmt: skip
    assert kinds_of(seen) == ["effect twice"]
    assert len(second_effects(seen.books)) == 1


def test_a_job_that_is_gone_or_has_not_ended_or_had_no_effect_is_found() -> None:
    assert kinds_of(evidence(run(0, 1, 2), rows=0)) == ["accepted, and not in the ledger"]
    assert kinds_of(evidence(run(0, 1, 2), state="running")) == ["has not ended"]
    assert kinds_of(evidence(run(0, 1, 2), effects=())) == ["ended, and no effect"]
    assert "not failed (poison)" in kinds_of(evidence(run(0, 1, 2), expects="failed (poison)"))


def test_what_no_ledger_knows_is_only_asked_for_its_effect() -> None:
    assert kinds_of(evidence(run(0, 1, 2), rows=0, expects="effect")) == []
    assert kinds_of(evidence(run(0, 1, 2), rows=0, expects="effect", effects=())) == [
        "ended, and no effect"
    ]


def test_a_process_that_dies_although_nobody_killed_it_is_found() -> None:
    seen = evidence(run(0, 1, 2, "died"), run(1, 3, 4), effects=((1, ""),))
    assert kinds_of(seen) == ["its process died by itself"]


def test_an_attempt_that_a_fault_has_spent_is_found() -> None:
    assert kinds_of(evidence(run(0, 1, 2), attempts=2)) == ["attempts spent"]


def test_the_books_refuse_a_key_that_they_know() -> None:
    books = Books()
    first = books.begin(JOB, "t", 1, "r", False)
    assert books.effect(first, "k")
    assert not books.effect(first, "k")
    assert (len(books.effects), books.repeats) == (1, 1)
    assert Books.of(books.page()).effects == books.effects


def test_only_a_call_that_was_refused_may_cost_an_attempt() -> None:
    refused, done = run(0, 1, 2, "Unavailable"), run(1, 3, 4)
    effects = ((1, ""),)
    assert kinds_of(evidence(refused, done, effects=effects, attempts=2)) == []
    assert kinds_of(evidence(refused, done, effects=effects, attempts=3)) == ["attempts spent"]


def test_the_busiest_second_may_begin_anywhere() -> None:
    assert most_in_a_second([]) == 0
    assert most_in_a_second([0.0, 0.9, 1.1, 1.5, 1.85, 3.0]) == 4
    assert most_in_a_second([0.0, 1.0, 2.0]) == 1


def test_a_job_that_begins_before_the_last_run_of_the_one_before_has_ended_is_too_early() -> None:
    died, again, other = run(0, 1, 2, "died"), run(1, 5, 6), replace(run(2, 3, 4), job="other")
    of_job = runs_by_job([died, again, other])
    assert began_too_early(of_job, JOB, "other")
    assert not began_too_early(runs_by_job([died, other]), JOB, "other")
    assert not began_too_early(runs_by_job([other, again]), "other", JOB)
