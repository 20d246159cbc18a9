"""What a pool's parent can tell of a batch after its child has died."""

from __future__ import annotations

import os
from uuid import UUID, uuid4

import pytest

from tasks.journal import JOBS_MAX, PLACES, RESULTS_BYTES, Entry, Journal, Place, Stage


def entry(journal: Journal, message_id: UUID) -> Entry:
    [found] = journal.read(message_id)
    return found


def claim(place: Place, *numbers: int) -> None:
    for number in numbers:
        place.note(number, Stage.CLAIMED)


def test_each_job_has_its_stage() -> None:
    journal, message_id = Journal(), uuid4()
    with journal.place(message_id, 5) as place:
        claim(place, 0, 1, 3)
        place.note(2, Stage.GONE)
        place.note(0, Stage.STARTED)
        assert place.keep(0, '"fine"')
        place.note(1, Stage.STARTED)
        found = entry(journal, message_id)
        assert found.at(Stage.ENDED) == [0]
        assert found.at(Stage.STARTED) == [1]
        assert found.at(Stage.CLAIMED) == [3]
        assert found.at(Stage.NAMED) == [4]
        assert found.claimed() == [(0, Stage.ENDED), (1, Stage.STARTED), (3, Stage.CLAIMED)]
        assert found.results == {0: '"fine"'}
    assert journal.read(message_id) == []


def test_a_settled_batch_leaves_nothing_to_the_next_one_in_its_place() -> None:
    journal = Journal()
    with journal.place(uuid4(), JOBS_MAX) as place:
        assert place.keep(JOBS_MAX - 1, "1")
    message_id = uuid4()
    with journal.place(message_id, 3) as place:
        claim(place, 2)
        found = entry(journal, message_id)
        assert (found.at(Stage.CLAIMED), found.at(Stage.ENDED), found.results) == ([2], [], {})
        assert found.at(Stage.NAMED) == [0, 1]


def test_a_result_that_finds_no_room_is_not_kept() -> None:
    journal, message_id = Journal(), uuid4()
    with journal.place(message_id, 3) as place:
        assert place.keep(0, "x" * (RESULTS_BYTES // 2))
        assert not place.keep(1, "x" * (RESULTS_BYTES // 2))
        assert entry(journal, message_id).results.keys() == {0}
        place.forget_results()
        assert place.keep(1, "x" * (RESULTS_BYTES // 2))


def test_what_a_dead_process_left_is_read_until_it_is_forgotten() -> None:
    journal, message_id = Journal(), uuid4()
    dead = journal.place(message_id, 2)
    place = dead.__enter__()  # and never leaves it
    claim(place, 0, 1)
    place.note(0, Stage.STARTED)
    assert entry(journal, message_id).at(Stage.STARTED) == [0]
    with journal.place(uuid4(), 1):  # its successor writes elsewhere
        assert entry(journal, message_id).at(Stage.CLAIMED) == [1]
    journal.forget(message_id, os.getpid() + 1)
    assert entry(journal, message_id).pid == os.getpid()
    journal.forget(message_id, os.getpid())
    assert journal.read(message_id) == []


def test_two_runs_of_one_message_have_an_entry_each() -> None:
    journal, message_id = Journal(), uuid4()
    with journal.place(message_id, 2) as first, journal.place(message_id, 2) as second:
        first.note(0, Stage.STARTED)
        second.note(1, Stage.STARTED)
        assert [found.at(Stage.STARTED) for found in journal.read(message_id)] == [[0], [1]]


@pytest.mark.parametrize("number", [0, 1, PLACES - 1])
def test_each_batch_has_a_place_of_its_own(number: int) -> None:
    journal = Journal()
    ids = [uuid4() for _ in range(3)]
    with (
        journal.place(ids[0], JOBS_MAX) as place,
        journal.place(ids[1], 2) as second,
        journal.place(ids[2], 3) as third,
    ):
        claim(place, number % JOBS_MAX)
        claim(second, 1)
        claim(third, 2)
        assert entry(journal, ids[0]).at(Stage.CLAIMED) == [number % JOBS_MAX]
        assert entry(journal, ids[1]).at(Stage.CLAIMED) == [1]
        assert entry(journal, ids[2]).at(Stage.CLAIMED) == [2]
