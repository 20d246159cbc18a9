"""Admission: what is accepted, what is refused, and what the refused are told."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from tasks import accept, admission, ledger, metrics, pauses, room, seats, sql
from tasks.admission import Sampler
from tasks.enqueue import Enqueued, Item, Refused, enqueue, enqueue_many, uuid7
from tasks.errors import KeyConflict, QueueClosed, Rejected
from tasks.models import Job, OperatorAction, Pause, Promise, QueueState, TenantLoad
from tasks.states import Pausable, Refusal, State
from tasks.topology import Queue, Topology
from tests import published_tasks  # noqa: F401  (registers them)
from tests.callers import api_client
from tests.job_rows import job_row
from tests.ledger_tasks import keyed, trace

committed = pytest.mark.django_db(transaction=True)
pytestmark = pytest.mark.django_db

LATER = datetime(2100, 1, 1, tzinfo=UTC)
Bound = Callable[..., None]


@pytest.fixture(autouse=True)
def no_promises_of_other_tests() -> None:
    admission.PROMISES = admission.Promises()


@pytest.fixture
def bound(settings: Any) -> Bound:
    """Bounds the default queue."""

    def set_bound(**options: Any) -> None:
        settings.TASKS_TOPOLOGY = Topology.of([Queue("default", **options)])

    return set_bound


def fill(count: int, **fields: Any) -> None:
    for _ in range(count):
        enqueue(trace, {"note": "x"}, **fields)


def refusal(**fields: Any) -> Rejected:
    with pytest.raises(Rejected) as caught:
        enqueue(trace, {"note": "x"}, **fields)
    return caught.value


def drains(per_s: float) -> None:
    """As the dispatcher writes it; for the length of a test it does not fade."""
    sql.execute(
        "INSERT INTO tasks_queuestate (queue, per_s, per_s_at) VALUES ('default', %s,"
        " clock_timestamp() + interval '5 minutes') ON CONFLICT (queue) DO UPDATE"
        " SET per_s = excluded.per_s, per_s_at = excluded.per_s_at",
        [per_s],
    )


def sample() -> None:
    """As the relay takes one."""
    Sampler().run()


def age_sample(seconds: float) -> None:
    sql.execute(
        "UPDATE tasks_queuestate SET waiting_at = clock_timestamp() - %s * interval '1 second'",
        [seconds],
    )


def waiting() -> int:
    return Job.objects.filter(state=State.QUEUED, due=True).count()


def in_threads[T](count: int, call: Callable[[int], T]) -> list[T]:
    gate = threading.Barrier(count)

    def run(number: int) -> T:
        connection.ensure_connection()
        gate.wait()
        try:
            return call(number)
        finally:
            connection.close()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


# --- the bounds ---------------------------------------------------------------------------


@pytest.mark.parametrize("sampled", [False, True])
def test_what_is_beyond_the_bound_is_refused_and_leaves_no_row(bound: Bound, sampled: bool) -> None:
    bound(max_waiting=5)
    if sampled:
        sample()
    fill(5)
    rejected = refusal()
    assert rejected.reason == Refusal.QUEUE_FULL
    assert Job.objects.count() == 5


@committed
def test_outside_a_transaction_the_bound_is_the_same(bound: Bound) -> None:
    bound(max_waiting=5)
    fill(5)
    assert refusal().reason == Refusal.QUEUE_FULL
    assert Job.objects.count() == 5


@committed
def test_a_place_that_became_free_is_taken_by_the_next(bound: Bound) -> None:
    bound(max_waiting=3)
    fill(3)
    assert refusal()
    ledger.cancel(Job.objects.earliest("seq").pk, actor="test")
    age_sample(10)
    fill(1)
    assert waiting() == 3


def test_a_repeat_is_never_refused(bound: Bound) -> None:
    bound(max_waiting=1)
    first = enqueue(keyed, {"order_id": 1})
    again = enqueue(keyed, {"order_id": 1})
    assert (again.job_id, again.created) == (first.job_id, False)
    with pytest.raises(KeyConflict):
        enqueue(keyed, {"order_id": 2}, key="keyed:1")
    assert refusal().reason == Refusal.QUEUE_FULL


def test_jobs_for_later_do_not_wait_and_are_not_refused(bound: Bound) -> None:
    bound(max_waiting=2)
    fill(5, run_at=LATER)
    fill(2)
    fill(1, run_at=LATER)
    assert refusal().reason == Refusal.QUEUE_FULL
    assert Job.objects.count() == 8


@pytest.mark.parametrize("sampled", [False, True])
def test_a_tenant_is_refused_beyond_its_share_and_the_others_are_not(
    bound: Bound, sampled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "UNSEEN_MAX", 0)
    bound(max_waiting=100, max_waiting_per_tenant=3)
    if sampled:
        sample()
    fill(3, tenant="acme")
    if sampled:
        age_sample(10)
        sample()
        assert TenantLoad.objects.get().waiting == 3
    assert refusal(tenant="acme").reason == Refusal.TENANT_FULL
    fill(3, tenant="globex")


@pytest.mark.parametrize(("until_s", "told_s"), [(100, 100), (None, 30)])
@pytest.mark.parametrize("kind", [Pausable.TENANT, Pausable.QUEUE])
def test_whoever_is_refused_in_a_pause_is_told_its_end_not_the_pace_of_others(
    bound: Bound, kind: Pausable, until_s: int | None, told_s: int
) -> None:
    bound(max_waiting_per_tenant=3)
    drains(100)
    fill(3, tenant="acme")
    until = datetime.now(UTC) + timedelta(seconds=until_s) if until_s else None
    name = "acme" if kind is Pausable.TENANT else "default"
    pauses.pause(kind, name, actor="ann", until=until)
    assert refusal(tenant="acme").retry_after == pytest.approx(told_s, abs=2)


def test_held_jobs_take_up_room(bound: Bound) -> None:
    bound(max_waiting=2)
    job_row(hold_reason="task unknown")
    fill(1)
    assert refusal()
    sample()
    assert refusal()


def test_other_queues_are_not_counted(bound: Bound) -> None:
    bound(max_waiting=1)
    sample()
    trace.apply_async(("x",), queue="elsewhere")
    trace.apply_async(("x",), queue="elsewhere")
    fill(1)


def test_no_more_is_accepted_than_starts_within_the_expected_wait(bound: Bound) -> None:
    bound(max_wait_s=2, processes=1)
    drains(per_s=4)
    job_row()
    sample()
    drains(per_s=4)
    fill(7)
    assert refusal().reason == Refusal.LONG_WAIT
    assert waiting() == 8


def test_a_queue_that_has_never_drained_takes_what_starts_at_once(bound: Bound) -> None:
    bound(max_wait_s=2, processes=3, replicas=2)
    fill(12)  # a slot's job, and one behind it
    assert refusal().reason == Refusal.LONG_WAIT


def test_a_drain_that_stopped_counts_for_nothing(bound: Bound) -> None:
    bound(max_waiting=2)
    drains(per_s=50)
    fill(2)
    sample()
    sql.execute(
        "UPDATE tasks_queuestate SET per_s_at = now() - interval '1 minute', idle_at = per_s_at",
        [],
    )
    sql.execute("UPDATE tasks_queuestate SET idle_at = per_s_at", [])
    assert refusal().retry_after == admission.STANDSTILL_RETRY_AFTER_S


# --- a closed queue -----------------------------------------------------------------------


@pytest.mark.parametrize("bounds", [{}, {"max_waiting": 10}])
def test_a_closed_queue_accepts_nothing_and_says_so(bound: Bound, bounds: dict[str, int]) -> None:
    bound(**bounds)
    first = enqueue(keyed, {"order_id": 1})
    until = datetime.now(UTC) + timedelta(seconds=90)
    Pause.objects.create(kind="queue", name="default", closed=True, actor="test", until=until)
    with pytest.raises(QueueClosed) as caught:
        enqueue(trace, {"note": "x"})
    assert 85 <= caught.value.retry_after <= 91
    answers = enqueue_many(trace, [{"note": "x"}, {"note": "y"}])
    assert all(isinstance(a, Refused) and isinstance(a.error, QueueClosed) for a in answers)
    assert enqueue(keyed, {"order_id": 1}).job_id == first.job_id
    assert Job.objects.count() == 1


@pytest.mark.parametrize(
    "pause",
    [
        {"closed": False},
        {"name": "elsewhere", "closed": True},
        {"kind": "tenant", "closed": True},
        {"closed": True, "until": datetime(2020, 1, 1, tzinfo=UTC)},
    ],
)  # fmt: skip
def test_a_queue_that_is_only_paused_accepts(pause: dict[str, Any]) -> None:
    Pause.objects.create(**{"kind": "queue", "name": "default", "actor": "test", **pause})
    fill(1)


# --- never refused ------------------------------------------------------------------------


@committed
def test_retries_and_replays_are_not_refused(bound: Bound) -> None:
    failed = job_row(State.FAILED)
    bound(max_waiting=1)
    fill(1)
    assert refusal()
    assert ledger.replay(failed.pk, actor="test", reason="again")
    assert waiting() == 2


def test_what_follows_an_accepted_job_is_not_refused(bound: Bound) -> None:
    bound(max_waiting=1)
    (trace.si("first") | trace.si("second")).apply_async()
    claimed = Job.objects.get()
    # The place of the first is taken while it runs.
    ledger.dispatch_here(claimed.pk)
    fill(1)
    assert refusal()
    with admission.waived():
        fill(1)
    assert waiting() == 2


# --- many ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sampled", [False, True])
def test_of_many_the_first_find_room_and_each_other_is_told(bound: Bound, sampled: bool) -> None:
    bound(max_waiting=5, max_waiting_per_tenant=3)
    if sampled:
        sample()
    enqueue(keyed, {"order_id": 1}, tenant="acme")
    items = [
        Item({"order_id": number}, tenant=tenant, run_at=run_at)
        for number, tenant, run_at in [
            (1, "acme", None), (2, "acme", None), (3, "acme", None), (4, "acme", None),
            (5, "globex", None), (6, "acme", LATER), (7, "globex", None), (8, "globex", None),
        ]
    ]  # fmt: skip
    answers = enqueue_many(keyed, items)
    told = [
        a.error.reason if isinstance(a, Refused) and isinstance(a.error, Rejected) else a.created
        for a in answers
        if isinstance(a, Enqueued | Refused)
    ]
    assert told == [
        False, True, True, Refusal.TENANT_FULL,
        True, True, True, Refusal.QUEUE_FULL,
    ]  # fmt: skip
    assert waiting() == 5


def test_many_beyond_the_room_are_refused_with_few_questions(
    bound: Bound, django_assert_max_num_queries: Any
) -> None:
    bound(max_waiting=10)
    sample()
    with django_assert_max_num_queries(25):
        answers = enqueue_many(trace, [{"note": str(n)} for n in range(1000)])
    assert [isinstance(a, Refused) for a in answers] == [False] * 10 + [True] * 990


def test_many_are_numbered_in_the_given_order(bound: Bound) -> None:
    bound(max_waiting=1000)
    notes = [f"{n}" for n in random.Random(7).sample(range(1000), 300)]
    enqueue_many(trace, [{"note": note} for note in notes])
    stored = Job.objects.order_by("seq").values_list("payload", flat=True)
    assert [payload["note"] for payload in stored] == notes


# --- shed ---------------------------------------------------------------------------------


def test_a_more_important_job_displaces_the_least_important_of_its_tenant(bound: Bound) -> None:
    bound(max_waiting=4, policy="shed")
    low = [enqueue(trace, {"note": "x"}, tenant="acme", priority=-5) for _ in range(2)]
    high = enqueue(trace, {"note": "x"}, tenant="acme", priority=1)
    other = enqueue(trace, {"note": "x"}, tenant="globex", priority=-100)
    new = enqueue(trace, {"note": "x"}, tenant="acme", priority=0)
    states = {job.pk: job.state for job in Job.objects.all()}
    assert states[low[1].job_id] == "cancelled"  # of equals the youngest
    assert {states[kept.job_id] for kept in (low[0], high, other, new)} == {"queued"}
    shed = Job.objects.get(pk=low[1].job_id)
    assert shed.cancel_reason == "shed"
    action = OperatorAction.objects.get()
    assert (action.actor, action.action, action.reason) == ("admission", "cancel", "shed")


def test_an_equal_displaces_nothing_nor_does_the_job_of_another_tenant(bound: Bound) -> None:
    bound(max_waiting=2, policy="shed")
    fill(2, tenant="acme", priority=3)
    assert refusal(tenant="acme", priority=3).reason == Refusal.QUEUE_FULL
    assert refusal(tenant="globex", priority=100).reason == Refusal.QUEUE_FULL
    assert waiting() == 2


def test_a_repeat_displaces_nothing(bound: Bound) -> None:
    bound(max_waiting=2, policy="shed")
    enqueue(keyed, {"order_id": 1}, priority=5)
    fill(1)
    assert not enqueue(keyed, {"order_id": 1}, priority=100).created
    assert waiting() == 2


@committed
def test_racing_important_jobs_each_displace_another(bound: Bound) -> None:
    bound(max_waiting=8, policy="shed")
    fill(8)
    answers = in_threads(8, lambda n: enqueue(trace, {"note": f"{n}"}, priority=9))
    assert all(answer.created for answer in answers)
    assert waiting() == 8
    assert Job.objects.filter(state="cancelled", cancel_reason="shed").count() == 8


# --- wait ---------------------------------------------------------------------------------


@committed
def test_a_caller_who_waits_gets_the_place_that_becomes_free(bound: Bound) -> None:
    bound(max_waiting=1)
    fill(1)
    leaves = Job.objects.get().pk

    def make_room() -> None:
        time.sleep(0.3)
        ledger.cancel(leaves, actor="test")
        sample_now()
        connection.close()

    maker = threading.Thread(target=make_room)
    maker.start()
    answer = enqueue(trace, {"note": "patient"}, wait=10)
    maker.join()
    assert answer.created


def sample_now() -> None:
    admission.refresh("default", older_than_s=0)


@committed
def test_a_wait_for_room_is_bounded(bound: Bound) -> None:
    bound(max_waiting=1)
    fill(1)
    began = time.monotonic()
    assert refusal(wait=0.4).reason == Refusal.QUEUE_FULL
    assert 0.4 <= time.monotonic() - began < 2
    assert Job.objects.count() == 1


@committed
def test_beyond_the_seats_nobody_waits_for_room(bound: Bound) -> None:
    bound(max_waiting=1)
    fill(1)
    with all_seats():
        began = time.monotonic()
        assert refusal(wait=10)
        assert time.monotonic() - began < 1


@committed
def test_nobody_waits_for_a_closed_queue() -> None:
    Pause.objects.create(kind="queue", name="default", closed=True, actor="test")
    began = time.monotonic()
    assert refusal(wait=10).reason == Refusal.CLOSED
    assert time.monotonic() - began < 1


@contextmanager
def all_seats() -> Iterator[None]:
    for _ in range(seats.waiting_max()):
        assert seats.seats().acquire(blocking=False)
    yield
    for _ in range(seats.waiting_max()):
        seats.seats().release()


# --- when to come again -------------------------------------------------------------------


@committed
def test_each_refused_caller_is_told_a_time_of_its_own(bound: Bound) -> None:
    bound(max_waiting=5)
    fill(5)
    drains(per_s=10)
    sample()
    began = time.monotonic()
    told = [refusal().retry_after + time.monotonic() - began for _ in range(200)]
    assert told[0] < 2
    for number, after_s in enumerate(told, start=1):
        turn_s = number / 10
        assert turn_s / 2 <= after_s <= max(4.0, turn_s * 2)  # whole seconds


@committed
def test_who_comes_before_its_turn_keeps_it(bound: Bound) -> None:
    bound(max_waiting=1)
    fill(1)
    drains(per_s=1)
    sample()
    first = refusal(key="mine").retry_after
    for _ in range(20):
        assert refusal(key="mine").retry_after <= first
    assert refusal(key="other").retry_after <= 4


@committed
def test_a_promise_has_an_end(bound: Bound) -> None:
    bound(max_waiting=1)
    fill(1)
    drains(per_s=0.01)
    sample()
    told = [refusal().retry_after for _ in range(30)]
    assert max(told) <= admission.PROMISED_AT_MOST_S


@committed
def test_once_there_is_room_nobody_is_put_off_for_those_who_never_came(bound: Bound) -> None:
    bound(max_waiting=5)
    fill(5)
    drains(per_s=1)
    sample()
    assert [refusal() for _ in range(50)][-1].retry_after > 30
    Job.objects.all().delete()
    age_sample(10)
    sample()
    assert not Promise.objects.exists()


@committed
def test_a_full_tenant_is_told_by_its_own_share_of_the_drain(bound: Bound) -> None:
    bound(max_waiting=100, max_waiting_per_tenant=5)
    for tenant in ("acme", "b", "c", "d"):
        fill(5, tenant=tenant)
    drains(per_s=4)
    age_sample(10)
    sample()
    told = [refusal(tenant="acme").retry_after for _ in range(8)]
    assert told[0] <= 2
    assert 7 <= told[7] <= 12  # one of its jobs leaves in a second


def test_inside_a_transaction_no_row_of_others_is_locked(bound: Bound) -> None:
    bound(max_waiting=1)
    fill(1)
    drains(per_s=1)
    sample()
    assert refusal().retry_after <= 2
    assert not Promise.objects.exists()


# --- racing -------------------------------------------------------------------------------


@committed
@pytest.mark.parametrize("warm", [False, True])
def test_racing_submitters_do_not_pass_the_bound_by_more_than_a_tenth(
    bound: Bound, warm: bool
) -> None:
    bound(max_waiting=200)
    if warm:
        sample()

    def submit(number: int) -> int:
        accepted = 0
        for turn in range(25):
            try:
                enqueue(trace, {"note": f"{number}-{turn}"})
                accepted += 1
            except Rejected:
                pass
        return accepted

    accepted = sum(in_threads(40, submit))  # 1,000 in all, 40 at every moment
    assert Job.objects.count() == accepted
    assert 200 <= accepted <= 220


@committed
def test_racing_bulks_do_not_pass_the_bound(bound: Bound) -> None:
    bound(max_waiting=2000)
    sample()

    def submit(number: int) -> int:
        answers = enqueue_many(trace, [{"note": f"{number}-{n}"} for n in range(700)])
        return sum(isinstance(answer, Enqueued) for answer in answers)

    accepted = sum(in_threads(8, submit))
    assert accepted == Job.objects.count() == 2000


@committed
def test_an_open_transaction_holds_up_nobody(bound: Bound) -> None:
    bound(max_waiting=200)
    sample()
    opened, may_end = threading.Event(), threading.Event()

    def keep_open() -> None:
        with transaction.atomic():
            enqueue(trace, {"note": "open"})
            opened.set()
            may_end.wait(20)
        connection.close()

    keeper = threading.Thread(target=keep_open)
    keeper.start()
    opened.wait(10)
    fill(150)  # who waits for a lock is refused after two seconds
    may_end.set()
    keeper.join()


# --- the sample ---------------------------------------------------------------------------


@committed
def test_without_any_relay_the_first_caller_of_a_bounded_queue_takes_the_sample(
    bound: Bound,
) -> None:
    bound(max_waiting=10)
    in_threads(20, lambda n: enqueue(trace, {"note": f"{n}"}) if n < 10 else None)
    state = QueueState.objects.get()
    assert state.waiting_seq != 0
    age_sample(10)
    before = QueueState.objects.get().waiting_at
    assert refusal().reason == Refusal.QUEUE_FULL
    state.refresh_from_db()
    assert state.waiting_at > before


def test_a_row_that_only_the_dispatcher_wrote_is_no_sample(bound: Bound) -> None:
    bound(max_waiting=2)
    drains(per_s=5)
    fill(2)
    assert refusal()


@committed
def test_two_who_sample_do_not_wait_for_each_other(bound: Bound) -> None:
    bound(max_waiting=2)
    sample()
    age_sample(10)
    with transaction.atomic():
        QueueState.objects.select_for_update().get()
        (taken,) = in_threads(1, lambda _: admission.refresh("default"))
    assert taken is False


@committed
def test_a_job_that_was_not_committed_when_the_sample_was_taken_counts_later(
    bound: Bound,
) -> None:
    bound(max_waiting=10)
    inserted, sampled = threading.Event(), threading.Event()

    def commit_late() -> None:
        with transaction.atomic():
            enqueue(trace, {"note": "late"})
            inserted.set()
            sampled.wait(20)
        connection.close()

    late = threading.Thread(target=commit_late)
    late.start()
    inserted.wait(10)
    fill(8)
    age_sample(10)
    sample()
    sampled.set()
    late.join()
    fill(1)
    assert refusal()
    assert waiting() == 10


def test_a_sample_reads_no_more_than_the_bound_asks_for(bound: Bound) -> None:
    bound(max_waiting=10)
    sql.execute(
        "INSERT INTO tasks_job (id, task, queue, idempotency_key, fingerprint, payload)"
        " SELECT gen_random_uuid(), 't.trace', 'default', n::text, '', '{}'"
        " FROM generate_series(1, 5000) n",
        [],
    )
    sample()
    assert QueueState.objects.get().waiting == 1020


def test_the_insert_counts_no_backlog_and_reads_no_history(bound: Bound) -> None:
    """The plan on a table never analysed, and on one that was."""
    bound(max_waiting=50_000)
    sql.execute(
        "INSERT INTO tasks_job (id, task, queue, idempotency_key, fingerprint, payload, state,"
        " finished_at) SELECT gen_random_uuid(), 't.trace', 'default', n::text, '', '{}',"
        " CASE WHEN n %% 2 = 0 THEN 'queued' ELSE 'succeeded' END,"
        " CASE WHEN n %% 2 = 1 THEN now() END FROM generate_series(1, 20000) n",
        [],
    )
    sample()
    fill(5)
    for statement in ("SELECT 1", "ANALYZE tasks_job"):
        sql.execute(statement, [])
        assert rows_read_by_an_insert() < 3 * room.UNSEEN_MAX


def rows_read_by_an_insert() -> int:
    """Rows of the jobs' table that the statement of one insert looked at."""
    bounds = admission.bounds_of("default")
    assert bounds is not None
    job = accept.NewJob(uuid7(), "t.trace", "default", "", str(uuid7()), "f", "{}")
    statement = accept.insert_one_if_room(bounds, to_the_end=False, is_ordered=False)
    explained = f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}"
    (plan,) = sql.fetch(explained, accept.values_of(job))[0]
    return read_of_jobs(plan[0]["Plan"])


def read_of_jobs(node: dict[str, Any]) -> int:
    own = 0
    if node.get("Relation Name") == "tasks_job" and "Scan" in node["Node Type"]:
        removed = node.get("Rows Removed by Filter", 0)
        own = int((node["Actual Rows"] + removed) * node["Actual Loops"])
    return own + sum(map(read_of_jobs, node.get("Plans", [])))


# --- over HTTP ----------------------------------------------------------------------------

CAPTURE = "published.capture"


def test_a_full_queue_is_429_with_its_reason_and_a_repeat_is_200(bound: Bound) -> None:
    bound(max_waiting=1)
    acme = api_client("acme")
    acme.enqueue(CAPTURE, {"order_id": 1}, key="one")
    answer = acme.enqueue(CAPTURE, {"order_id": 2}, key="two")
    assert answer.status_code == 429
    assert (answer.json()["type"], answer.json()["reason"]) == ("/problems/rejected", "queue full")
    assert int(answer["Retry-After"]) >= 1
    assert acme.enqueue(CAPTURE, {"order_id": 1}, key="one").status_code == 200


def test_a_closed_queue_is_503_with_retry_after() -> None:
    Pause.objects.create(kind="queue", name="default", closed=True, actor="test")
    answer = api_client("acme").enqueue(CAPTURE, {"order_id": 2}, key="two")
    assert answer.status_code == 503
    assert answer.json()["type"] == "/problems/queue-closed"
    assert answer["Retry-After"] == "30"


@committed
def test_who_prefers_to_wait_is_accepted_once_there_is_room(bound: Bound) -> None:
    bound(max_waiting=1)
    acme = api_client("acme")
    first = acme.enqueued()

    def make_room() -> None:
        time.sleep(0.3)
        ledger.cancel(Job.objects.get(pk=first).pk, actor="test")
        sample_now()
        connection.close()

    maker = threading.Thread(target=make_room)
    maker.start()
    body = {"task": CAPTURE, "payload": {"order_id": 2}}
    answer = acme.post("/jobs", body, idempotency_key="two", prefer="wait=10")
    maker.join()
    assert answer.status_code == 202
    assert answer["Preference-Applied"] == "wait=10"


@committed
def test_beyond_the_seats_the_refusal_comes_at_once(bound: Bound) -> None:
    bound(max_waiting=1)
    acme = api_client("acme")
    acme.enqueued()
    body = {"task": CAPTURE, "payload": {"order_id": 2}}
    with all_seats():
        began = time.monotonic()
        answer = acme.post("/jobs", body, idempotency_key="two", prefer="wait=10")
    assert time.monotonic() - began < 1
    assert answer.status_code == 429
    assert "Preference-Applied" not in answer
    assert answer["Retry-After"]


# --- counted ------------------------------------------------------------------------------


def rejections(tenant: str, reason: str) -> float:
    return metrics.REJECTED.labels("default", tenant, reason)._value.get()


def test_rejections_are_counted_by_queue_tenant_and_reason(bound: Bound) -> None:
    bound(max_waiting=1)
    metrics._tenants.clear()
    before = rejections("acme", Refusal.QUEUE_FULL)
    fill(1, tenant="acme")
    refusal(tenant="acme")
    enqueue_many(trace, [Item({"note": "x"}, tenant="acme")] * 2)
    assert rejections("acme", Refusal.QUEUE_FULL) == before + 3


def test_a_crowd_of_tenants_shares_one_series() -> None:
    metrics._tenants.clear()
    labels = {metrics.tenant_label(f"tenant-{n}") for n in range(1000)}
    assert len(labels) == metrics.TENANTS_MAX + 1
    assert metrics.OTHER_TENANTS in labels
