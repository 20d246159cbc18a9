"""What a pool's parent can tell of a batch after its child has died."""

from __future__ import annotations

from uuid import uuid4

import pytest

from tasks.journal import JOBS_MAX, PLACES, RESULTS_BYTES, Entry, Journal, Stage


def entry(journal: Journal, message_id: object) -> Entry:
    found = journal.read(message_id)  # type: ignore[arg-type]
    assert found
    return found


def test_each_job_has_its_stage() -> None:
    journal, message_id = Journal(), uuid4()
    with journal.place(message_id, [0, 1, 3]) as place:
        place.note(0, Stage.STARTED)
        assert place.keep(0, '"fine"')
        place.note(1, Stage.STARTED)
        found = entry(journal, message_id)
        assert found.at(Stage.ENDED) == [0]
        assert found.at(Stage.STARTED) == [1]
        assert found.at(Stage.CLAIMED) == [3]
        assert found.results == {0: '"fine"'}
    assert journal.read(message_id) is None


def test_a_settled_batch_leaves_nothing_to_the_next_one_in_its_place() -> None:
    journal = Journal()
    with journal.place(uuid4(), range(JOBS_MAX)) as place:
        assert place.keep(JOBS_MAX - 1, "1")
    message_id = uuid4()
    with journal.place(message_id, [2]):
        found = entry(journal, message_id)
        assert (found.at(Stage.CLAIMED), found.at(Stage.ENDED), found.results) == ([2], [], {})


def test_a_result_that_finds_no_room_is_not_kept() -> None:
    journal, message_id = Journal(), uuid4()
    with journal.place(message_id, range(3)) as place:
        assert place.keep(0, "x" * (RESULTS_BYTES // 2))
        assert not place.keep(1, "x" * (RESULTS_BYTES // 2))
        assert entry(journal, message_id).results.keys() == {0}
        place.forget_results()
        assert place.keep(1, "x" * (RESULTS_BYTES // 2))


def test_what_a_dead_process_left_is_read_until_it_is_forgotten() -> None:
    journal, message_id = Journal(), uuid4()
    dead = journal.place(message_id, [0, 1])
    place = dead.__enter__()  # and never leaves it
    place.note(0, Stage.STARTED)
    assert entry(journal, message_id).at(Stage.STARTED) == [0]
    with journal.place(uuid4(), [0]):  # its successor writes elsewhere
        assert entry(journal, message_id).at(Stage.CLAIMED) == [1]
    journal.forget(message_id)
    assert journal.read(message_id) is None


@pytest.mark.parametrize("number", [0, 1, PLACES - 1])
def test_each_batch_has_a_place_of_its_own(number: int) -> None:
    journal = Journal()
    ids = [uuid4() for _ in range(3)]
    with (
        journal.place(ids[0], [number % JOBS_MAX]),
        journal.place(ids[1], [1]),
        journal.place(ids[2], [2]),
    ):
        assert entry(journal, ids[0]).at(Stage.CLAIMED) == [number % JOBS_MAX]
        assert entry(journal, ids[1]).at(Stage.CLAIMED) == [1]
        assert entry(journal, ids[2]).at(Stage.CLAIMED) == [2]
