"""Accepting jobs: one intent, one row, in the caller's transaction."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import psycopg
import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from tasks import fleet, ledger, sql
from tasks.enqueue import Enqueued, Item, Refused, enqueue, enqueue_many, uuid7
from tasks.errors import InvalidKey, InvalidPayload, KeyConflict, Rejected, UnknownTask
from tasks.listen import own_parameters
from tasks.models import Job
from tasks.states import Failure, State
from tasks.wake import CHANNEL
from tests.ledger_tasks import keyed, one_at_a_time, trace, typed, windowed
from tests.processes import wait_until

committed = pytest.mark.django_db(transaction=True)
pytestmark = pytest.mark.django_db


def in_threads[T](count: int, call: Callable[[int], T]) -> list[T]:
    """All at once, each with a connection of its own; the first error rises."""
    gate = threading.Barrier(count)

    def run(number: int) -> T:
        gate.wait()
        try:
            return call(number)
        finally:
            connection.close()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


@contextmanager
def open_transaction(
    body: Callable[[], object], *, roll_back: bool = False
) -> Iterator[Callable[[], None]]:
    """Another session that has run ``body`` and not ended; call what is yielded to end it."""
    ran, may_end = threading.Event(), threading.Event()

    def run() -> None:
        try:
            with transaction.atomic():
                body()
                ran.set()
                may_end.wait(20)
                transaction.set_rollback(roll_back)
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    assert ran.wait(10)

    def end() -> None:
        may_end.set()
        thread.join(10)

    try:
        yield end
    finally:
        end()


def fail_job(job_id: object) -> None:
    number = ledger.dispatch_here(job_id)
    claim = ledger.claim(job_id, number, worker="t", release="", lease_s=15)
    assert claim
    error = ledger.ErrorReport.of("ValueError", "no")
    assert ledger.fail(job_id, claim.fence, failure=Failure.ERROR, error=error)


# --- keys ------------------------------------------------------------------------------------


def test_a_repeat_answers_with_the_same_job_and_creates_nothing() -> None:
    first = enqueue(keyed, {"order_id": 7})
    again = enqueue(keyed, {"order_id": 7})
    assert (first.created, again.created) == (True, False)
    assert first.job_id == again.job_id
    assert Job.objects.count() == 1
    assert again.key_expires_at > datetime.now(UTC) + timedelta(days=6)


@committed
def test_five_hundred_racing_calls_with_one_key_make_one_job() -> None:
    def call(number: int) -> list[Enqueued]:
        return [enqueue(keyed, {"order_id": 1}) for _ in range(10)]

    answers = [answer for answers in in_threads(50, call) for answer in answers]
    assert len(answers) == 500
    assert len({answer.job_id for answer in answers}) == 1
    assert sum(answer.created for answer in answers) == 1
    assert Job.objects.count() == 1


def test_a_key_reused_for_another_payload_names_the_fields_and_leaves_the_first_alone() -> None:
    enqueue(keyed, {"order_id": 7, "amount": "100", "label": "secret-1"}, key="k")
    with pytest.raises(KeyConflict) as error:
        enqueue(keyed, {"order_id": 7, "amount": "200", "label": "secret-2"}, key="k")
    assert error.value.fields == ("amount", "label")
    assert "secret" not in str(error.value)
    assert "200" not in str(error.value)
    assert Job.objects.get().payload["amount"] == "100"


def test_a_key_reused_for_another_task_is_a_conflict() -> None:
    enqueue(trace, {"note": "x"}, key="k")
    with pytest.raises(KeyConflict) as error:
        enqueue(keyed, {"order_id": 1}, key="k")
    assert error.value.fields == ("task",)


def test_key_order_of_the_payload_is_no_difference_and_is_kept() -> None:
    first = enqueue(keyed, {"label": "x", "order_id": 1}, key="k")
    assert enqueue(keyed, {"order_id": 1, "label": "x"}, key="k").job_id == first.job_id
    assert list(Job.objects.get().payload) == ["label", "order_id"]


def test_defaults_are_not_part_of_the_fingerprint() -> None:
    enqueue(keyed, {"order_id": 1}, key="k")
    assert Job.objects.get().payload == {"order_id": 1}


def test_run_at_and_priority_are_not_compared() -> None:
    first = enqueue(keyed, {"order_id": 1}, key="k", priority=5)
    later = datetime.now(UTC) + timedelta(hours=1)
    assert enqueue(keyed, {"order_id": 1}, key="k", priority=9, run_at=later).job_id == first.job_id


def test_two_tenants_with_one_key_have_two_jobs() -> None:
    one = enqueue(trace, {"note": "a"}, key="1", tenant="a")
    two = enqueue(trace, {"note": "b"}, key="1", tenant="b")
    assert one.job_id != two.job_id
    assert two.created


def test_without_a_key_each_call_is_a_job() -> None:
    assert enqueue(trace, {"note": "x"}).job_id != enqueue(trace, {"note": "x"}).job_id


@pytest.mark.parametrize("key", ["", " ", "a b", "x" * 256, "ключ", "a\x00", "x\n"])
def test_a_key_that_cannot_be_kept_is_refused_before_anything_is_written(key: str) -> None:
    with pytest.raises(InvalidKey):
        enqueue(trace, {"note": "x"}, key=key)
    assert not Job.objects.exists()


@pytest.mark.parametrize("key", ["x", "x" * 255, "Aa~!"])
def test_a_key_of_up_to_255_visible_characters_is_kept_as_it_is(key: str) -> None:
    enqueue(trace, {"note": "x"}, key=key)
    assert Job.objects.get().idempotency_key == key


def test_a_failed_job_answers_repeats_unchanged() -> None:
    first = enqueue(keyed, {"order_id": 1})
    fail_job(first.job_id)
    again = enqueue(keyed, {"order_id": 1})
    assert (again.job_id, again.created, again.state) == (first.job_id, False, State.FAILED)


def test_replace_swaps_the_payload_of_a_job_that_never_started() -> None:
    first = enqueue(keyed, {"order_id": 1}, key="k")
    swapped = enqueue(keyed, {"order_id": 2}, key="k", on_conflict="replace")
    assert swapped.job_id == first.job_id
    assert Job.objects.get().payload == {"order_id": 2}
    assert enqueue(keyed, {"order_id": 2}, key="k").job_id == first.job_id


def test_replace_conflicts_once_the_job_has_started() -> None:
    first = enqueue(keyed, {"order_id": 1}, key="k")
    ledger.claim(first.job_id, ledger.dispatch_here(first.job_id), worker="", release="", lease_s=9)
    with pytest.raises(KeyConflict):
        enqueue(keyed, {"order_id": 2}, key="k", on_conflict="replace")
    assert Job.objects.get().payload == {"order_id": 1}


def test_a_unique_unfinished_task_is_one_at_a_time_and_frees_its_key_when_terminal() -> None:
    first = enqueue(one_at_a_time, {"name": "x"})
    assert enqueue(one_at_a_time, {"name": "x"}).job_id == first.job_id
    fail_job(first.job_id)
    second = enqueue(one_at_a_time, {"name": "x"})
    assert second.created
    assert Job.objects.get(id=first.job_id).former_key == "one:x"


@committed
def test_racers_for_a_freed_key_make_one_new_job() -> None:
    fail_job(enqueue(one_at_a_time, {"name": "x"}).job_id)
    answers = in_threads(20, lambda _: enqueue(one_at_a_time, {"name": "x"}))
    assert len({answer.job_id for answer in answers}) == 1
    assert Job.objects.count() == 2


@committed
def test_a_double_click_within_the_window_is_one_job() -> None:
    answers = in_threads(20, lambda _: enqueue(windowed, {"name": "x"}))
    assert len({answer.job_id for answer in answers}) == 1
    assert all(answer.derived for answer in answers)
    assert enqueue(windowed, {"name": "y"}).created
    assert enqueue(windowed, {"name": "x"}, tenant="other").created


@committed
def test_a_double_click_across_the_edge_of_the_window_is_one_job() -> None:
    edge = 2 - time.time() % 2
    time.sleep(max(0.0, edge - 0.15))  # the moment itself is what is tested
    ids = set()
    for _ in range(6):
        ids.add(enqueue(windowed, {"name": "edge"}).job_id)
        time.sleep(0.05)
    assert len(ids) == 1


# --- transactions ----------------------------------------------------------------------------


@committed
def test_a_rollback_leaves_no_job() -> None:
    with transaction.atomic():
        enqueue(trace, {"note": "x"})
        transaction.set_rollback(True)
    assert not Job.objects.exists()


@committed
def test_a_racer_waits_for_the_other_transaction_and_gets_its_job() -> None:
    with open_transaction(lambda: enqueue(keyed, {"order_id": 1})) as end:
        threading.Timer(0.3, end).start()
        assert enqueue(keyed, {"order_id": 1}).created is False


@committed
def test_a_racer_whose_rival_rolls_back_makes_the_job() -> None:
    with open_transaction(lambda: enqueue(keyed, {"order_id": 1}), roll_back=True) as end:
        threading.Timer(0.3, end).start()
        assert enqueue(keyed, {"order_id": 1}).created is True
    assert Job.objects.count() == 1


@committed
@pytest.mark.parametrize("inside", [False, True])
def test_a_racer_waits_no_longer_than_the_lock_timeout(inside: bool) -> None:
    """And inside a transaction the caller can go on, with its own lock timeout."""
    with open_transaction(lambda: enqueue(keyed, {"order_id": 1})):
        before = time.monotonic()
        if inside:
            with transaction.atomic():
                sql.set_lock_timeout("7s")
                with pytest.raises(Rejected):
                    enqueue(keyed, {"order_id": 1})
                assert sql.lock_timeout() == "7s"
                enqueue(keyed, {"order_id": 2})
                assert sql.lock_timeout() == "7s"
        else:
            with pytest.raises(Rejected):
                enqueue(keyed, {"order_id": 1})
            assert sql.lock_timeout() == "0"
        assert time.monotonic() - before < 4


@committed
def test_outside_a_transaction_a_job_is_accepted_in_one_round_trip(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tasks.wake.LOOKS_AGAIN_AFTER_S", 60.0)  # however busy this machine is
    assert enqueue(trace, {"note": "the first opens the connection"}).created
    with CaptureQueriesContext(connection) as sent:
        assert enqueue(trace, {"note": "x"}).created
    assert [query["sql"][:13] for query in sent] == ["WITH patience"]


@committed
def test_inside_a_transaction_a_savepoint_is_all_that_is_added() -> None:
    with transaction.atomic(), CaptureQueriesContext(connection) as sent:
        assert enqueue(trace, {"note": "x"}).created
    words = [query["sql"].split()[0] for query in sent]
    assert words == ["SAVEPOINT", "WITH", "RELEASE"]


@committed
def test_a_repeat_inside_a_transaction_leaves_its_lock_timeout_alone() -> None:
    enqueue(keyed, {"order_id": 1})
    with transaction.atomic():
        sql.set_lock_timeout("7s")
        assert enqueue(keyed, {"order_id": 1}).created is False
        assert sql.lock_timeout() == "7s"


@committed
@pytest.mark.parametrize("asleep", [False, True])
def test_only_a_relay_that_sleeps_is_told_of_a_job(asleep: bool) -> None:
    relay = uuid7()
    fleet.relay_beats(relay, "here", 1, "")
    fleet.relay_sleeps(relay, asleep)
    assert hints_of(lambda: enqueue(trace, {"note": "x"})) == asleep


@committed
def test_a_relay_that_fell_asleep_during_a_long_insert_is_told_of_the_job() -> None:
    relay = uuid7()
    fleet.relay_beats(relay, "here", 1, "")
    with open_transaction(lambda: enqueue(keyed, {"order_id": 1}), roll_back=True) as end:

        def fall_asleep_and_let_go() -> None:
            fleet.relay_sleeps(relay, True)
            connection.close()
            end()

        threading.Timer(0.3, fall_asleep_and_let_go).start()
        assert hints_of(lambda: enqueue(keyed, {"order_id": 1})) is True


@committed
@pytest.mark.parametrize("inside", [False, True])
def test_an_item_whose_key_is_contended_is_refused_and_the_others_go_on(inside: bool) -> None:
    ours = transaction.atomic() if inside else nullcontext()
    with open_transaction(lambda: enqueue(keyed, {"order_id": 2})), ours:
        answers = enqueue_many(keyed, [{"order_id": n} for n in (3, 2, 1)])
    first, contended, last = answers
    assert isinstance(first, Enqueued)
    assert isinstance(last, Enqueued)
    assert isinstance(contended, Refused)
    assert isinstance(contended.error, Rejected)
    assert Job.objects.count() == 3  # the holder's own, and two


@committed
def test_many_contended_keys_keep_the_caller_for_a_bounded_time() -> None:
    held = [{"order_id": n} for n in range(20)]
    before = time.monotonic()
    with open_transaction(lambda: enqueue_many(keyed, held)):
        answers = enqueue_many(keyed, held)
    assert all(isinstance(answer, Refused) for answer in answers)
    assert time.monotonic() - before < 20


def hints_of(act: Callable[[], object]) -> bool:
    """Whether it wakes who listens."""
    with psycopg.connect(**own_parameters(), autocommit=True) as session:
        session.execute(f"LISTEN {CHANNEL}")
        act()
        return any(True for _ in session.notifies(timeout=0.5, stop_after=1))


def test_waiting_for_room_inside_a_transaction_is_refused() -> None:
    with pytest.raises(ValueError, match="inside a transaction"):
        enqueue(trace, {"note": "x"}, wait=1.0)


@committed
def test_a_savepoint_that_is_rolled_back_takes_its_job_along() -> None:
    with transaction.atomic():
        kept = enqueue(trace, {"note": "kept"})
        with transaction.atomic():
            enqueue(trace, {"note": "gone"})
            transaction.set_rollback(True)
    assert [job.id for job in Job.objects.all()] == [kept.job_id]


# --- data ------------------------------------------------------------------------------------


def test_typed_values_are_stored_as_json_and_equal_however_they_are_sent() -> None:
    order = uuid4()
    first = enqueue(typed, {"order": order, "price": "1.50"}, key="k")
    assert enqueue(typed, {"order": str(order), "price": "1.50"}, key="k").job_id == first.job_id
    assert Job.objects.get().payload == {"order": str(order), "price": "1.50"}


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        ({"note": "x\x00y"}, "note"),
        ({"note": "\ud800"}, "note"),
        ({"note": 7}, "note"),
        ({}, "note"),
        ({"note": "x", "other": 1}, "other"),
        ({1: 2}, "no such parameter"),
    ],
)
def test_a_payload_that_cannot_be_stored_or_does_not_fit_is_refused_by_name(
    payload: dict[str, object], path: str
) -> None:
    with pytest.raises(InvalidPayload, match=path):
        enqueue(trace, payload)
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"priority": 101}, "priority"),
        ({"priority": -101}, "priority"),
        ({"priority": 1.5}, "priority"),
        ({"priority": True}, "priority"),
        ({"run_at": datetime(2030, 1, 1)}, "run_at"),  # noqa: DTZ001
        ({"run_at": "tomorrow"}, "run_at"),
        ({"run_at": datetime(9999, 12, 31, 23, tzinfo=UTC)}, "run_at"),
        ({"start_by": datetime(1, 1, 1, tzinfo=UTC)}, "start_by"),
        ({"start_by": datetime(2030, 1, 1)}, "start_by"),  # noqa: DTZ001
        ({"tenant": "x" * 101}, "tenant"),
        ({"tenant": "a\x00"}, "tenant"),
        ({"tenant": None}, "tenant"),
        ({"ordering_key": "a b"}, "visible ASCII"),
    ],
)
def test_options_out_of_range_are_refused_by_name(options: dict[str, object], field: str) -> None:
    with pytest.raises((InvalidPayload, InvalidKey), match=field):
        enqueue(trace, {"note": "x"}, **options)
    assert not Job.objects.exists()


def test_big_integers_and_text_beyond_the_basic_plane_survive() -> None:
    enqueue(trace, {"note": "😀 \u2028"})
    enqueue(keyed, {"order_id": 10**300})
    assert [job.payload for job in Job.objects.order_by("seq")] == [
        {"note": "😀 \u2028"},
        {"order_id": 10**300},
    ]


def test_unknown_and_plain_tasks_are_refused_with_what_to_do() -> None:
    with pytest.raises(UnknownTask, match="INSTALLED_APPS"):
        enqueue("no.such.task", {})
    with pytest.raises(UnknownTask, match=r"did you mean 't\.trace'\?"):
        enqueue("trace", {"note": "x"})
    with pytest.raises(UnknownTask, match="base=LedgerTask"):
        enqueue("celery.backend_cleanup", {})


# --- many ------------------------------------------------------------------------------------


def test_enqueue_many_answers_each_item_in_order() -> None:
    enqueue(keyed, {"order_id": 2, "label": "old"})
    answers = enqueue_many(
        keyed,
        [
            {"order_id": 1},
            {"order_id": 2},
            {"order_id": "x"},
            Item({"order_id": 3}, key="bad key"),
            {"order_id": 1},
            Item({"order_id": 4}, tenant="acme", priority=9),
        ],
    )
    kinds = [
        type(answer.error).__name__ if isinstance(answer, Refused) else answer.created
        for answer in answers
    ]
    assert kinds == [True, "KeyConflict", "InvalidPayload", "InvalidKey", False, True]
    assert Job.objects.count() == 3
    assert Job.objects.get(tenant="acme").priority == 9


def test_enqueue_many_keeps_the_order_of_acceptance_and_crosses_chunks() -> None:
    answers = enqueue_many(trace, [{"note": str(n)} for n in range(2500)])
    assert all(isinstance(answer, Enqueued) and answer.created for answer in answers)
    notes = [job.payload["note"] for job in Job.objects.order_by("seq")]
    assert notes == [str(n) for n in range(2500)]


@committed
def test_two_bulk_callers_with_the_same_keys_in_opposite_order_do_not_deadlock() -> None:
    keys = [f"k{n}" for n in range(300)]

    def call(number: int) -> list[Enqueued | Refused]:
        order = keys if number % 2 else keys[::-1]
        return enqueue_many(trace, [Item({"note": "x"}, key=key) for key in order])

    answers = [answer for answers in in_threads(6, call) for answer in answers]
    assert not any(isinstance(answer, Refused) for answer in answers)
    assert Job.objects.count() == 300


def test_ids_are_ordered_by_time() -> None:
    first = uuid7()
    born_ms = first.int >> 80
    wait_until(lambda: time.time_ns() // 1_000_000 > born_ms, every_s=0.001)
    second = uuid7()
    assert first < second
    assert (first.version, second.version) == (7, 7)
