"""The relay: due jobs reach the broker once, within window and limit, whatever fails around it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from celery import current_app
from django.db import connection
from django.db.models.functions import Now

from config.celeryconfig import _AMQP_OPTIONS as AMQP_OPTIONS
from devtools.proxy import FaultyProxy
from tasks import ledger, message_format, turns
from tasks.dispatch import WINDOW_S, Load, Slots, room
from tasks.enqueue import Enqueued, Item, enqueue, enqueue_many
from tasks.models import Job, QueueState, Worker
from tasks.models import Relay as RelayRow
from tasks.pace import FIRST_OVER_S, SHARED_OVER_S, Pace, tell
from tasks.relay import HOUSEKEEPING_EVERY_S, Relay, in_turn
from tasks.rescue import EXPIRED_FOR_S, take
from tasks.states import State
from tasks.topology import Downstream, Queue, Topology
from tests.broker import BROKERS, Corner, corner_of
from tests.ledger_tasks import limited, quick, quick_rate, trace
from tests.processes import database_url, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

BANK = Downstream("bank", max_concurrency=20)
TOPOLOGY = Topology.of([Queue("default"), Queue("limited", downstream=BANK, replicas=4)])


@pytest.fixture(params=BROKERS)
def broker(
    request: pytest.FixtureRequest, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Corner]:
    settings.TASKS_TOPOLOGY = TOPOLOGY
    corner = corner_of(request.param)
    conf = current_app.conf
    kept = conf.broker_transport_options if request.param == "redis" else AMQP_OPTIONS
    monkeypatch.setitem(conf, "broker_url", corner.url)
    monkeypatch.setitem(conf, "broker_write_url", corner.url)
    monkeypatch.setitem(conf, "broker_transport_options", {**kept, **corner.options})
    yield corner
    corner.clear()


@contextmanager
def a_relay(url: str | None = None) -> Iterator[Relay]:
    relay = Relay(current_app)
    if url:
        relay.publisher.app = Elsewhere(url)
    try:
        yield relay
    finally:
        relay.publisher.close()
        relay.listener.close()


@contextmanager
def a_running_relay() -> Iterator[Relay]:
    """In a thread, which is still alive at the end."""
    with a_relay() as relay:

        def run() -> None:
            relay.run()
            connection.close()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield relay
            assert thread.is_alive()
        finally:
            relay.stop()
            thread.join(10)


class Elsewhere:
    """The application, with its broker behind another address."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.amqp = current_app.amqp
        self.tasks = current_app.tasks

    def connection_for_write(self) -> Any:
        return current_app.connection_for_write(self.url)


def a_worker(queue: str = "default", *, capacity: int = 100, busy: int = 0) -> Worker:
    return Worker.objects.create(
        name=f"w@{queue}", host="h", pid=1, queues=[queue], known_tasks=[], capacity=capacity,
        busy=busy,
    )  # fmt: skip


# --- what may go -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slots", "load", "in_flight", "expected"),
    [
        (Slots(4, 4), Load(0, 0), 0, 8),
        (Slots(4, 4), Load(8, 4), 12, 0),
        (Slots(4, 4), Load(9, 4), 13, 0),
        (Slots(20, 20), Load(0, 0), 0, 20),
        (Slots(20, 5), Load(3, 15), 18, 2),
        (Slots(20, 5), Load(0, 0), 20, 0),
        (Slots(500, 500), Load(0, 0), 0, 20),
    ],
)
def test_room_is_the_window_or_what_the_limit_leaves(
    slots: Slots, load: Load, in_flight: int, expected: int
) -> None:
    assert room(TOPOLOGY.queue("limited"), slots, load, in_flight) == expected


def test_short_jobs_may_fill_a_quarter_of_a_second_and_long_ones_two_per_slot() -> None:
    queue, slots = Queue("default"), Slots(4, 4)
    assert room(queue, slots, Load(), 0, per_s=400.0) == 100
    assert room(queue, slots, Load(), 0, per_s=4.0) == 8


def test_tenants_at_their_cap_do_not_hide_those_behind_them(
    broker: Corner, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass looks at three tenants, and the first three have all that they may have."""
    settings.TASKS_TOPOLOGY = Topology.of([Queue("default", max_running_per_tenant=1)])
    monkeypatch.setattr(turns, "TENANTS_AT_ONCE", 3)
    a_worker()
    with a_relay() as relay:
        relay.slots = {"default": Slots(100, 100)}
        for tenant in "abcefg":
            enqueue_many(trace, [Item({"note": n}, tenant=tenant) for n in "xy"])
        assert [relay.dispatch("default", "") for _ in range(2)] == [3, 3]
        enqueue(trace, {"note": "x"}, tenant="d")
        assert sum(relay.dispatch("default", "") for _ in range(2)) == 1
    assert Job.objects.filter(tenant="d", state=State.DISPATCHED).count() == 1


def test_a_nearly_full_window_is_not_refilled_job_by_job() -> None:
    queue, slots = Queue("default"), Slots(4, 4)
    assert room(queue, slots, Load(5, 4), 9) == 0
    assert room(queue, slots, Load(4, 4), 8) == 4


def test_one_full_window_of_long_jobs_does_not_widen_the_next() -> None:
    pace = Pace()
    pace.took(8, now=100.0)
    assert int(pace.per_s * WINDOW_S) <= 8
    pace.took(0, now=105.0)
    assert pace.per_s < 0.1


def test_without_a_worker_nothing_goes_to_the_broker(broker: Corner) -> None:
    enqueue(trace, {"note": "x"})
    with a_relay() as relay:
        assert relay.run_once() == 0
    assert Job.objects.get().state == State.QUEUED


def test_a_message_is_a_task_name_an_id_and_a_dispatch_number_and_no_payload(
    broker: Corner,
) -> None:
    a_worker()
    job_id = enqueue(trace, {"note": "secret"}).job_id
    with a_relay() as relay:
        assert relay.run_once() == 1
    (message,) = broker.messages()
    headers = message["headers"]
    assert (headers["task"], headers["id"], headers["dispatch_no"]) == ("t.trace", str(job_id), 1)
    assert headers["v"] == message_format.NEWEST
    assert "secret" not in repr(message)


def test_jobs_go_out_by_priority_then_age(broker: Corner) -> None:
    a_worker()
    items = [Item({"note": str(p)}, priority=p) for p in (0, -100, 100, 0)]
    accepted = [answer.job_id for answer in enqueue_many(trace, items)]
    with a_relay() as relay:
        relay.run_once()
    assert broker.ids() == [str(accepted[n]) for n in (2, 0, 3, 1)]


def test_no_more_than_the_window_lies_on_the_broker(broker: Corner) -> None:
    a_worker(capacity=3)
    enqueue_many(trace, [{"note": "x"}] * 50)
    with a_relay() as relay:
        relay.run_once()
        relay.run_once()
    assert len(broker.ids()) == 6


def test_what_is_due_later_waits_in_the_ledger_until_then(broker: Corner) -> None:
    a_worker()
    enqueue(trace, {"note": "x"}, run_at=datetime.now(UTC) + timedelta(hours=1))
    with a_relay() as relay:
        assert relay.run_once() == 0
        Job.objects.update(run_at=datetime.now(UTC) - timedelta(seconds=1))
        relay.housekeeping_at = 0.0
        relay.run_once()
        relay.run_once()
    assert len(broker.ids()) == 1


def test_many_relays_send_each_job_once_and_never_exceed_the_limit_together(
    broker: Corner,
) -> None:
    a_worker("limited", capacity=500)
    a_worker("default", capacity=500)
    enqueue_many(limited, [{"note": "x"}] * 100)
    enqueue_many(trace, [{"note": "x"}] * 400)
    gate = threading.Barrier(4)

    def run(_: int) -> None:
        with a_relay() as relay:
            gate.wait()
            while relay.run_once():
                pass
        connection.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4)))
    assert len(broker.ids("limited")) == 20
    assert len(broker.ids()) == len(set(broker.ids())) == 400


# --- what fails ------------------------------------------------------------------------------


def test_a_broker_that_refuses_gives_the_rows_back_and_is_logged_once(
    broker: Corner, caplog: pytest.LogCaptureFixture
) -> None:
    a_worker()
    enqueue_many(trace, [{"note": "x"}] * 5)
    with FaultyProxy("127.0.0.1", broker.port) as proxy:
        proxy.refuse()
        with a_relay(broker.url_at(proxy.port)) as relay:
            for _ in range(3):
                relay.publisher.try_again_at = 0.0
                relay.run_once()
            assert set(Job.objects.values_list("state", flat=True)) == {State.QUEUED}
            # Only the first try marked any: from then on the broker is asked before.
            assert set(Job.objects.values_list("dispatch_no", flat=True)) == {1}
            proxy.pass_on()
            relay.publisher.try_again_at = 0.0
            wait_until(lambda: relay.run_once() == 0 and len(broker.ids()) == 5)
    events = [record.getMessage() for record in caplog.records]
    assert sum("broker_away" in event for event in events) == 1
    assert sum("broker_back" in event for event in events) == 1


def test_a_broker_that_is_mute_costs_seconds_not_minutes_and_gives_the_rows_back(
    broker: Corner,
) -> None:
    a_worker()
    enqueue_many(trace, [{"note": "x"}] * 20)
    with FaultyProxy("127.0.0.1", broker.port) as proxy:
        proxy.black_hole()
        with a_relay(broker.url_at(proxy.port)) as relay:
            before = datetime.now(UTC)
            relay.run_once()
            assert datetime.now(UTC) - before < timedelta(seconds=8)
            assert set(Job.objects.values_list("state", flat=True)) == {State.QUEUED}


def test_a_lost_message_is_sent_again_once_a_worker_has_a_free_slot(broker: Corner) -> None:
    worker = a_worker(capacity=1, busy=1)
    job_id = enqueue(trace, {"note": "x"}).job_id
    with a_relay() as relay:
        relay.run_once()
        broker.lose()
        Job.objects.update(dispatched_at=datetime.now(UTC) - timedelta(seconds=31))
        relay.housekeeping_at = 0.0
        relay.run_once()
        assert broker.ids() == []
        Worker.objects.filter(name=worker.name).update(busy=0)
        relay.housekeeping_at = 0.0
        relay.run_once()
    assert broker.ids() == [str(job_id)]
    assert broker.messages()[0]["headers"]["dispatch_no"] == 2


def test_a_young_message_is_not_sent_again(broker: Corner) -> None:
    a_worker()
    enqueue(trace, {"note": "x"})
    with a_relay() as relay:
        relay.run_once()
        relay.housekeeping_at = 0.0
        relay.run_once()
    assert len(broker.ids()) == 1


def test_an_outage_of_the_database_is_logged_once_and_waited_out(
    broker: Corner, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.relay.PAUSES_S", (0.05,))
    a_worker()
    with a_relay() as relay:
        away = threading.Event()
        look = ledger.lanes_with_due_jobs

        def answers() -> list[tuple[str, str]]:
            if away.is_set():
                with connection.cursor() as cursor:
                    cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
            return look()

        monkeypatch.setattr(ledger, "lanes_with_due_jobs", answers)
        away.set()

        def run() -> None:
            relay.run()
            connection.close()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        wait_until(lambda: "ledger_away" in caplog.text)
        enqueue(trace, {"note": "x"})
        away.clear()
        wait_until(lambda: len(broker.ids()) == 1)
        relay.stop()
        thread.join(10)
        assert not thread.is_alive()
    assert caplog.text.count("ledger_away") == 1
    assert caplog.text.count("ledger_back") == 1


def test_a_relay_that_lost_its_listener_goes_on_and_listens_again(
    broker: Corner, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.listen.RECONNECTS_AFTER_S", 0.5)
    a_worker()
    with a_running_relay() as relay:
        wait_until(lambda: relay.listener.session is not None)
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query ~ '^LISTEN'"
                " AND datname = current_database()"
            )
        wait_until(lambda: "listener_lost" in caplog.text)
        enqueue(trace, {"note": "x"})
        wait_until(lambda: len(broker.ids()) == 1)
        wait_until(lambda: "listener_back" in caplog.text)
    assert caplog.text.count("listener_lost") == 1


def test_an_error_of_its_own_is_logged_once_and_does_not_end_the_relay(
    broker: Corner, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.relay.FAILURE_PAUSE_S", 0.02)
    a_worker()
    tries: list[int] = []

    def fails(limit: int) -> int:
        tries.append(limit)
        raise LookupError("a bug")

    monkeypatch.setattr(ledger, "expire", fails)
    with a_running_relay():
        wait_until(lambda: len(tries) > 3)
        enqueue(trace, {"note": "x"})
        wait_until(lambda: len(broker.ids()) == 1)
    assert caplog.text.count("relay_failed") == 1


def test_a_locked_row_stops_no_relay_and_is_not_rescued(
    broker: Corner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody cancels a running job, and does not end the transaction."""
    monkeypatch.setattr("tasks.rescue.EXPIRED_FOR_S", 0.0)
    a_worker()
    running = a_run_whose_lease_expired()
    enqueue(trace, {"note": "x"})
    with a_relay() as relay:
        relay.watches_since -= 60
        with psycopg.connect(database_url()) as web:
            web.execute("UPDATE tasks_job SET cancel_reason = 'x' WHERE id = %s", [running])
            seen = ledger.Expired(running, 1, "t.trace", "default", "w")
            before = datetime.now(UTC)
            assert relay.run_once() == 1
            assert take(seen) is False
            assert datetime.now(UTC) - before < timedelta(seconds=1)
        assert Job.objects.get(id=running).state == State.RUNNING
        relay.housekeeping_at = 0.0
        relay.run_once()
    assert Job.objects.get(id=running).crashes == 1


def test_a_lease_that_was_found_expired_once_may_still_be_renewed(broker: Corner) -> None:
    """A lock kept its worker from renewing until just now."""
    running = a_run_whose_lease_expired()
    with a_relay() as relay:
        relay.watches_since -= 60
        relay.run_once()
        assert Job.objects.get(id=running).state == State.RUNNING
        key = (running, 1)
        relay.rescuer.expired_since[key] -= EXPIRED_FOR_S
        assert ledger.renew([(running, 1, 15.0)])[running].renewed
        relay.housekeeping_at = 0.0
        relay.run_once()
        assert key not in relay.rescuer.expired_since
    assert Job.objects.get(id=running).crashes == 0


def test_a_relay_that_froze_while_it_dispatched_stops_its_limit_only(
    broker: Corner, caplog: pytest.LogCaptureFixture
) -> None:
    a_worker("default")
    a_worker("limited")
    enqueue(limited, {"note": "x"})
    enqueue(trace, {"note": "x"})
    with a_relay() as relay, psycopg.connect(database_url()) as frozen:
        name = TOPOLOGY.queue("limited").lock_name
        frozen.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 1))", [name])
        assert relay.run_once() == 1
    assert (len(broker.ids()), len(broker.ids("limited"))) == (1, 0)
    assert "dispatch_waits_for_lock" in caplog.text


def a_run_whose_lease_expired() -> UUID:
    job_id = enqueue(trace, {"note": "x"}).job_id
    number = ledger.dispatch_here(job_id)
    assert ledger.claim(job_id, number, worker="w", release="", lease_s=-1.0)
    return job_id


# --- being awake -----------------------------------------------------------------------------


def test_a_sleeping_relay_is_woken_by_the_commit(broker: Corner) -> None:
    """Well before the poll: the hint works, and only a sleeping relay gets one."""
    a_worker()
    with a_relay() as relay, pytest.MonkeyPatch.context() as patch:
        patch.setattr("tasks.relay.IDLE_POLL_S", 30.0)

        def run() -> None:
            relay.run()
            connection.close()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        wait_until(lambda: RelayRow.objects.filter(sleeping=True).exists())
        wait_until(lambda: relay.listener.session is not None)
        enqueue(trace, {"note": "x"})
        wait_until(lambda: len(broker.ids()) == 1, within_s=5)
        wait_until(lambda: RelayRow.objects.filter(sleeping=True).exists())
        relay.stop()
        enqueue(trace, {"note": "wakes it to see that it should stop"})
        thread.join(10)
        assert not thread.is_alive()
    assert not RelayRow.objects.exists()


def test_a_relay_looks_again_soon_after_it_said_that_it_sleeps(broker: Corner) -> None:
    """Whoever was inserting at that moment has not seen it, and does not wake it."""
    with a_relay() as relay, pytest.MonkeyPatch.context() as patch:
        patch.setattr("tasks.relay.LOOKS_AGAIN_AFTER_S", 10.0)
        patch.setattr("tasks.relay.IDLE_POLL_S", 100.0)
        relay.set_sleeping(True)
        assert relay.sleeps_s() <= 10
        relay.dozes_until = time.monotonic()
        assert relay.sleeps_s() > 10


def test_a_message_carries_the_time_limit_of_its_task_else_of_its_queue(broker: Corner) -> None:
    a_worker()
    enqueue(trace, {"note": "x"})
    enqueue(quick, {"note": "x"})
    with a_relay() as relay:
        relay.run_once()
    limits = [message["headers"]["timelimit"] for message in broker.messages()]
    assert limits == [[300, None], [7, 5]]


def test_a_queue_that_cannot_be_served_does_not_stop_the_others(
    broker: Corner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    a_worker("default")
    a_worker("limited")
    enqueue(limited, {"note": "x"})
    enqueue(trace, {"note": "x"})
    with a_relay() as relay:
        connected = relay.publisher.connected

        def refuses_one(queue: str) -> Any:
            if queue == "default":
                raise ValueError("no such queue can be declared")
            return connected(queue)

        monkeypatch.setattr(relay.publisher, "connected", refuses_one)
        assert relay.run_once() == 1
    assert len(broker.ids("limited")) == 1
    assert "dispatch_failed" in caplog.text


def test_short_jobs_of_a_task_share_a_message_and_ordered_ones_do_not(
    broker: Corner, settings: Any
) -> None:
    settings.TASKS_TOPOLOGY = Topology.of([Queue("default", batch=50)])
    a_worker(capacity=2)
    items = [Item({"note": "x"}, ordering_key=f"{n}" if n < 2 else None) for n in range(9)]
    answers = enqueue_many(trace, items)
    with a_relay() as relay:
        relay.means["default"][trace.name] = 0.001
        wait_until(lambda: relay.run_once() == 0)
    found = [message["headers"] for message in broker.messages()]
    named = [
        [job_id for job_id, _ in headers["batch"]] if "batch" in headers else [headers["id"]]
        for headers in found
    ]
    assert sorted(map(len, named)) == [1, 1, 7]
    ids = [str(answer.job_id) for answer in answers if isinstance(answer, Enqueued)]
    assert sorted(job_id for group in named for job_id in group) == sorted(ids)
    together = next(headers for headers in found if "batch" in headers)
    assert together["id"] not in ids
    assert together["timelimit"][0] == settings.TASKS_TOPOLOGY.queue("default").time_limit + 1


def test_a_publish_that_fails_half_way_gives_all_back_and_what_got_out_is_stale(
    broker: Corner,
) -> None:
    a_worker()
    enqueue_many(trace, [{"note": "x"}] * 5)
    with a_relay() as relay, pytest.MonkeyPatch.context() as patch:
        send, sent = relay.publisher.send, []

        def fails_at_the_third(producer: Any, queue: Queue, job: ledger.Dispatched) -> None:
            if len(sent) == 2:
                raise ConnectionResetError
            send(producer, queue, job)
            sent.append(job)

        patch.setattr(relay.publisher, "send", fails_at_the_third)
        assert relay.run_once() == 0
        assert set(Job.objects.values_list("state", flat=True)) == {State.QUEUED}
        for job in sent:
            assert not ledger.claim(job.id, job.dispatch_no, worker="", release="", lease_s=9)
        patch.undo()
        relay.publisher.try_again_at = 0.0
        wait_until(lambda: relay.run_once() == 0 and len(fresh(broker)) == 5)
    assert len(set(fresh(broker))) == 5


def fresh(broker: Corner) -> list[str]:
    """Without those of the first try, which RabbitMQ has got."""
    return [m["headers"]["id"] for m in broker.messages() if m["headers"]["dispatch_no"] == 2]


def test_a_relay_does_not_stay_in_step_with_workers_that_ask_once_a_second(broker: Corner) -> None:
    """Else a job that one of two workers knows goes to the other one, again and again."""
    pauses_s = set()
    with a_relay() as relay:
        for _ in range(10):
            relay.housekeeping_at = 0.0
            began = time.monotonic()
            relay.housekeeping()
            pauses_s.add(round(relay.housekeeping_at - began, 1))
    assert len(pauses_s) > 1
    assert all(
        HOUSEKEEPING_EVERY_S / 2 <= pause_s < 2 * HOUSEKEEPING_EVERY_S for pause_s in pauses_s
    )


def test_lanes_and_queues_take_turns_in_the_room_there_is() -> None:
    lanes = [("a", ""), ("a", "quick"), ("b", "")]
    assert list(in_turn(lanes, 0)) == [("a", "", 0.5), ("a", "quick", 1.0), ("b", "", 1.0)]
    assert list(in_turn(lanes, 1)) == [("b", "", 1.0), ("a", "quick", 0.5), ("a", "", 1.0)]
    assert list(in_turn([], 7)) == []


def test_a_lane_that_is_always_full_leaves_room_for_the_others(broker: Corner) -> None:
    """However high the rate of its task is."""
    a_worker(capacity=2)
    enqueue_many(quick_rate, [{"note": "x"}] * 50)
    [other] = enqueue_many(trace, [Item({"note": "x"}, tenant="b")])
    with a_relay() as relay:
        for _ in range(2):
            relay.run_once()
            for job_id, number in Job.objects.filter(state=State.DISPATCHED).values_list(
                "id", "dispatch_no"
            ):
                assert ledger.claim(job_id, number, worker="w", release="", lease_s=15)
    assert isinstance(other, Enqueued)
    assert Job.objects.get(id=other.job_id).state == State.RUNNING


def test_what_relays_dispatch_adds_up_to_one_pace_and_fades() -> None:
    ours, theirs = Pace(untold=30), Pace(untold=20)
    tell({"default": ours})
    tell({"default": theirs})
    tell({"default": ours})  # nothing new
    state = QueueState.objects.get(queue="default")
    assert state.per_s == pytest.approx(30 / FIRST_OVER_S + 20 / SHARED_OVER_S, rel=0.1)
    long_ago = Now() - timedelta(seconds=2 * SHARED_OVER_S)
    QueueState.objects.update(per_s_at=long_ago, idle_at=long_ago - timedelta(seconds=1))
    tell({"default": Pace(untold=5)})
    state.refresh_from_db()
    assert state.per_s == pytest.approx(19 / math.e**2 + 1, rel=0.1)


def test_a_queue_that_wanted_for_work_keeps_the_pace_it_had() -> None:
    """Also for a night: exp() of PostgreSQL raises where the result is too small."""
    tell({"default": Pace(untold=50)})
    QueueState.objects.update(per_s_at=Now() - timedelta(hours=9), idle_at=Now())
    tell({"default": Pace(untold=5)})
    assert QueueState.objects.get().per_s == 50 / FIRST_OVER_S
    QueueState.objects.update(
        per_s_at=Now() - timedelta(hours=9), idle_at=Now() - timedelta(hours=10)
    )
    tell({"default": Pace(untold=5)})
    assert QueueState.objects.get().per_s == pytest.approx(1)


def test_a_connection_that_breaks_during_a_publish_gives_all_back(broker: Corner) -> None:
    a_worker()
    with (
        FaultyProxy("127.0.0.1", broker.port) as proxy,
        a_relay(broker.url_at(proxy.port)) as relay,
    ):
        enqueue(trace, {"note": "first"})
        assert relay.run_once() == 1
        proxy.refuse()
        enqueue_many(trace, [{"note": "x"}] * 3)
        assert relay.run_once() == 0
    assert Job.objects.filter(state=State.QUEUED).count() == 3
    assert len(broker.ids()) == 1


def test_a_broker_that_goes_mute_under_a_connection_costs_seconds_too(broker: Corner) -> None:
    a_worker()
    with (
        FaultyProxy("127.0.0.1", broker.port) as proxy,
        a_relay(broker.url_at(proxy.port)) as relay,
    ):
        enqueue(trace, {"note": "first"})
        assert relay.run_once() == 1
        proxy.black_hole()
        enqueue_many(trace, [{"note": "x"}] * 3)
        before = datetime.now(UTC)
        assert relay.run_once() == 0
        assert datetime.now(UTC) - before < timedelta(seconds=8)
    assert Job.objects.filter(state=State.QUEUED).count() == 3


def test_a_queue_that_somebody_deleted_is_declared_again(broker: Corner) -> None:
    a_worker()
    with a_relay() as relay:
        enqueue(trace, {"note": "first"})
        assert relay.run_once() == 1
        broker.clear()
        enqueue(trace, {"note": "second"})
        relay.publisher.try_again_at = 0.0
        relay.run_once()
        relay.publisher.try_again_at = 0.0
        relay.run_once()
    assert len(broker.ids()) == 1
