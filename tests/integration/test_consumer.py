"""What a worker does with messages that are no job it can run."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import pytest
from celery.worker import strategy
from celery.worker.consumer import Consumer as CeleryConsumer
from django.db import OperationalError
from kombu import Message

from devtools.proxy import FaultyProxy
from project.celery import app
from tasks import ledger, message_format, parking
from tasks.consumer import MALFORMED, Consumer, check_shape
from tasks.enqueue import enqueue
from tasks.ledger import Dispatched
from tasks.models import Job, ParkedMessage
from tests.broker import Corner, execute, trace_table
from tests.ledger_tasks import trace
from tests.processes import database_url, wait_until, worker

KNOWN = "plain.trace"
# JSON still reads and writes it; pickle does not.
DEEP = json.loads("[" * 9000 + "]" * 9000)
PLAIN_TASKS = ("-I", "tests.plain_tasks")

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def corner() -> Iterator[Corner]:
    corner = Corner()
    yield corner
    corner.clear()


def headers(**changes: Any) -> dict[str, Any]:
    return {"task": KNOWN, "id": str(uuid4()), **changes}


@pytest.mark.django_db(transaction=True)
def test_every_message_that_is_no_task_is_parked_and_the_worker_goes_on(corner: Corner) -> None:
    with (
        trace_table() as trace,
        worker("default", *PLAIN_TASKS, "-c", "1", env=corner.env) as process,
    ):
        corner.send('"nonsense"', headers=headers())
        corner.send({"a": 1}, headers=headers())
        corner.send([[], {}], headers=headers())
        corner.send([[], {}, {}], headers={"task": KNOWN})
        corner.send([[], {}, {}], headers=headers(eta="the day after"))
        corner.send([[], {}, {}], headers=headers(task="nobody.knows"))
        corner.send({"order": 7}, headers={})
        corner.send("{not json", headers=headers())
        corner.send(b"\x80\x04.", headers=headers(), content_type="application/x-python-serialize")
        corner.send_task(KNOWN, "alive")

        wait_until(lambda: trace.notes == ["alive"], what="the good task behind them runs")
        wait_until(lambda: ParkedMessage.objects.count() == 9, what="all nine are parked")
        wait_until(lambda: corner.unacked() == 0, what="all are acked")
        assert process.is_running
        assert corner.waiting() == 0
    assert process.log.count("message_parked") == 9
    assert "Unrecoverable error" not in process.log


@pytest.mark.django_db(transaction=True)
def test_a_parked_message_keeps_its_bytes_headers_queue_and_reason(corner: Corner) -> None:
    given = headers(task="nobody.knows", origin="elsewhere")
    with worker("bulk", "-c", "1", env=corner.env):
        corner.send('{"b": 1,  "a": 2}', headers=given, queue="bulk")
        parked = wait_until(ParkedMessage.objects.first, what="parked")
    assert bytes(parked.body) == b'{"b": 1,  "a": 2}'
    assert json.loads(parked.headers) == given
    assert (parked.task, parked.queue, parked.reason) == ("nobody.knows", "bulk", "unknown task")


@pytest.mark.django_db(transaction=True)
def test_what_was_never_a_message_is_parked_too(corner: Corner) -> None:
    items = [b"hello", b'{"a": 1}', b"[1, 2]", b"\xff\xfe"]
    with worker("default", "-c", "1", env=corner.env) as process:
        corner.push(*items)
        wait_until(lambda: ParkedMessage.objects.count() == len(items), what="all are parked")
        wait_until(lambda: corner.unacked() == 0, what="all are acked")
        assert process.is_running
    first = ParkedMessage.objects.order_by("id")[0]
    assert (bytes(first.body), first.queue) == (b"hello", "default")


@pytest.mark.django_db(transaction=True)
def test_a_job_whose_task_the_worker_does_not_know_is_held_in_the_ledger(corner: Corner) -> None:
    job = dispatched_job(task="orders.of_the_next_release")
    with worker("default", "-c", "1", env=corner.env) as process:
        corner.send_task(job.task, id=str(job.id), dispatch_no=1)
        wait_until(lambda: state_of(job) == "queued", what="given back")
        wait_until(lambda: corner.unacked() == 0, what="acked")
        process.wait_for("job_unknown_here")
    job.refresh_from_db()
    assert (job.attempts, job.crashes, job.hold_reason) == (0, 0, "task unknown")
    assert not ParkedMessage.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_job_whose_task_is_a_plain_one_here_is_held_and_not_run_without_its_arguments(
    corner: Corner,
) -> None:
    job = dispatched_job(task=KNOWN)
    with (
        trace_table() as trace,
        worker("default", *PLAIN_TASKS, "-c", "1", env=corner.env) as process,
    ):
        corner.send([["no argument of the job"], {}, {}],
                    headers=headers(id=str(job.id), dispatch_no=1))  # fmt: skip
        process.wait_for("job_unknown_here")
        wait_until(lambda: state_of(job) == "queued", what="given back")
        wait_until(lambda: corner.unacked() == 0, what="acked")
        assert trace.notes == []


@pytest.mark.django_db(transaction=True)
def test_a_message_of_a_newer_format_is_held_for_another_release_and_not_guessed_at(
    corner: Corner,
) -> None:
    job = dispatched_job(task="orders.of_any_release")
    with worker("default", "-c", "1", env={**corner.env, "RELEASE": "old"}) as process:
        # Its other parts may mean anything by then: none of them is looked at.
        corner.send({"not": "a body of today"}, headers=headers(
            task=job.task, id=str(job.id), dispatch_no=1, v=message_format.NEWEST + 1,
            timelimit="none"))  # fmt: skip
        wait_until(lambda: state_of(job) == "queued", within_s=30, what="given back")
        wait_until(lambda: corner.unacked() == 0, within_s=30, what="acked")
        process.wait_for("message_too_new")
    job.refresh_from_db()
    assert (job.attempts, job.crashes, job.release) == (0, 0, "old")
    assert job.hold_reason.startswith("incompatible: message format ")
    assert not ParkedMessage.objects.exists()


@pytest.mark.parametrize("version", ["2", True, 0, None, 1.0, message_format.NEWEST + 1])
def test_a_version_that_is_none_of_ours_cannot_be_read(version: Any) -> None:
    assert message_format.problem({"v": version})


@pytest.mark.django_db(transaction=True)
def test_a_message_without_a_version_is_of_the_first_format(corner: Corner) -> None:
    job_id = enqueue(trace, {"note": "old relay"}).job_id
    assert ledger.dispatch("default", 1)
    with trace_table() as traced, worker("default", "-I", "tests.ledger_tasks", "-c", "1",
                                         env=corner.env):  # fmt: skip
        corner.send_task("t.trace", id=str(job_id), dispatch_no=1)
        wait_until(lambda: traced.notes == ["old relay"], within_s=30, what="it runs")


@pytest.mark.django_db(transaction=True)
def test_with_the_database_away_a_bad_message_waits_unacked_and_is_parked_later(
    corner: Corner,
) -> None:
    host, port = execute("SELECT host(inet_server_addr()), inet_server_port()")[0]
    with FaultyProxy(host, port) as proxy:
        env = {**corner.env, "DATABASE_URL": database_url(port=proxy.port)}
        with worker("default", "-c", "1", env=env) as process:
            proxy.refuse()
            corner.send('"nonsense"', headers=headers(task="nobody.knows"))
            process.wait_for("parking_waits_for_database")
            assert corner.unacked() == 1
            proxy.pass_on()
            wait_until(ParkedMessage.objects.exists, what="parked")
            wait_until(lambda: corner.unacked() == 0, what="acked")
            assert process.is_running


@pytest.mark.django_db(transaction=True)
def test_what_the_database_cannot_store_stops_no_message_behind_it(corner: Corner) -> None:
    with (
        trace_table() as trace,
        worker("default", *PLAIN_TASKS, "-c", "1", env=corner.env) as process,
    ):
        corner.push(envelope(headers(task="nobody.knows"), routing_key="default\x00x"))
        corner.push(envelope(headers(task="nobody.knows"), routing_key="default\ud800"))
        corner.push(envelope(headers(task="nobody\x00\ud800")))
        corner.push(envelope(headers(task="nobody.knows", dispatch_no=2**40)))
        corner.push(envelope(headers(task="nobody.knows", dispatch_no=True)))
        corner.send_task(KNOWN, "alive")

        wait_until(lambda: trace.notes == ["alive"], what="the good task behind them runs")
        wait_until(lambda: ParkedMessage.objects.count() == 5, what="all five are parked")
        wait_until(lambda: corner.unacked() == 0, what="all are acked")
        assert process.is_running
    assert "default\\x00x" in ParkedMessage.objects.values_list("queue", flat=True)


@pytest.mark.django_db(transaction=True)
def test_headers_of_a_wrong_type_end_no_worker(corner: Corner) -> None:
    wrong: list[dict[str, Any]] = [
        {"timelimit": 5},
        {"timelimit": ["x", "y"]},
        {"stamped_headers": 7},
        {"stamped_headers": ["x"], "stamps": 7},
        {"retries": "x"},
        {"expires": 5},
        {"id": 7},
        {"note": DEEP},
    ]
    with (
        trace_table() as trace,
        worker("default", *PLAIN_TASKS, "-c", "1", env=corner.env) as process,
    ):
        for changes in wrong:
            corner.send_task(KNOWN, "wrong", **changes)
        corner.send_task(KNOWN, DEEP)
        corner.send({"task": KNOWN, "id": str(uuid4()), "args": ["wrong"], "timelimit": 5})
        corner.send_task(KNOWN, "alive", timelimit=[60, None])

        wait_until(lambda: trace.notes == ["alive"], what="the good task behind them runs")
        wait_until(lambda: ParkedMessage.objects.count() == len(wrong) + 2, what="parked")
        wait_until(lambda: corner.unacked() == 0, what="all are acked")
        assert process.is_running


@pytest.mark.django_db(transaction=True)
def test_a_message_whose_row_is_refused_is_kept_as_bytes_with_the_reason() -> None:
    def write() -> None:
        execute("SELECT 'x'::int")

    acked = threading.Event()
    parking.Desk().hand_over(parking.Keeping(write, "unknown task", b"body"), acked.set)
    assert acked.wait(10)
    row = ParkedMessage.objects.get()
    assert bytes(row.body) == b"body"
    assert row.reason.startswith("unknown task; kept without its headers: DataError(")


def test_a_message_that_can_be_kept_nowhere_is_not_acked_and_blocks_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parking, "LONGEST_PAUSE_S", 0.05)
    refusals = iter([RuntimeError("no"), RuntimeError("no"), None])
    order: list[str] = []

    class Stubborn(parking.Keeping):
        def write_bare(self, refusal: Exception) -> None:
            raise RuntimeError("not even that")

    def refused() -> None:
        order.append("tried")
        refusal = next(refusals)
        if refusal:
            raise refusal

    desk = parking.Desk()
    desk.hand_over(Stubborn(refused, "", b""), lambda: order.append("refused acked"))
    desk.hand_over(keeping(lambda: None), lambda: order.append("next acked"))
    wait_until(lambda: "refused acked" in order)
    assert order == ["tried", "next acked", "tried", "tried", "refused acked"]


def test_the_desk_outlives_an_ack_that_fails() -> None:
    acked = threading.Event()
    desk = parking.Desk()
    desk.hand_over(keeping(lambda: None), Mock(side_effect=RuntimeError("no loop")))
    desk.hand_over(keeping(lambda: None), acked.set)
    assert acked.wait(5)


def test_a_message_is_acked_only_after_its_row_was_written() -> None:
    answers = iter([OperationalError("away"), OperationalError("still away"), None])
    order: list[str] = []

    def write() -> None:
        answer = next(answers)
        order.append("written" if answer is None else "failed")
        if answer is not None:
            raise answer

    parking.Desk().hand_over(keeping(write), lambda: order.append("acked"))
    wait_until(lambda: len(order) == 4)
    assert order == ["failed", "failed", "written", "acked"]


def test_a_body_that_is_too_long_is_cut_and_the_note_says_so() -> None:
    body, note = parking.bounded_body("x" * (parking.BODY_MAX + 5))
    assert len(body) == parking.BODY_MAX
    assert note == f" (body cut from {parking.BODY_MAX + 5} bytes)"


@pytest.mark.parametrize(
    "given",
    [
        {"id": "not-a-uuid", "task": "a", "dispatch_no": 1},
        {"task": "a", "dispatch_no": 1},
        {"id": str(uuid4()), "task": "a"},
        {"id": str(uuid4()), "task": "a", "dispatch_no": "1"},
        {"id": str(uuid4()), "task": "a", "dispatch_no": True},
        {"id": str(uuid4()), "task": "a", "dispatch_no": 0},
        {"id": str(uuid4()), "task": "a", "dispatch_no": 2**31},
    ],
)
def test_a_message_without_job_id_and_dispatch_number_is_no_job_of_ours(
    given: dict[str, Any],
) -> None:
    assert parking.job_of(SimpleNamespace(headers=given)) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"timelimit": []},
        {"timelimit": [1]},
        {"timelimit": [-1, None]},
        {"timelimit": [float("nan"), None]},
        {"timelimit": [10**400, None]},
        {"timelimit": [True, None]},
        {"stamped_headers": [7]},
        {"stamps": []},
        {"retries": None},
        {"eta": 7},
        {"group": {"a": 1}},
        {"chain": "x"},
        {"callbacks": [1]},
        {"dispatch_no": 2**40},
    ],
)
def test_a_header_that_celery_would_trust_and_stumble_over_is_refused(
    changes: dict[str, Any],
) -> None:
    with pytest.raises(TypeError, match=next(iter(changes))):
        check_shape(bad_message("[[], {}, {}]", headers(**changes)))


@pytest.mark.parametrize("body", ["[[], {}, 7]", "[[], 7, {}]", '[[], {}, {"errbacks": "x"}]'])
def test_a_body_that_celery_would_trust_and_stumble_over_is_refused(body: str) -> None:
    with pytest.raises(TypeError):
        check_shape(bad_message(body, headers()))


def test_what_celery_itself_publishes_has_the_right_shape() -> None:
    signed = app.signature(KNOWN, ("x",))
    sent = app.amqp.as_task_v2(
        str(uuid4()), KNOWN, ("x",), {}, countdown=5, expires=60, time_limit=9,
        group_id="g", group_index=0, callbacks=[signed], errbacks=[signed], chain=[signed],
        chord=signed, stamped_headers=["by"], by="me",
    )  # fmt: skip
    check_shape(bad_message(json.dumps(sent.body), json.loads(json.dumps(sent.headers))))


def test_what_a_taken_message_raises_is_not_its_fault() -> None:
    message = bad_message("[[], {}, {}]", headers())
    handle = handler_of(Consumer, on_task_request=Mock(side_effect=KeyError("a bug elsewhere")))
    with pytest.raises(KeyError, match="a bug elsewhere"):
        handle(message)


# --- canaries: they fail when Celery no longer needs the cure ------------------------------


@pytest.mark.parametrize(
    ("body", "given"),
    [
        ('"nonsense"', headers()),
        ('{"a": 1}', headers()),
        ("[[], {}]", headers()),
        ("[[], {}, {}]", {"task": KNOWN}),
    ],
)
def test_canary_the_stock_consumer_lets_a_malformed_message_reach_the_loop(
    body: str, given: dict[str, Any]
) -> None:
    with pytest.raises(MALFORMED):
        handler_of(CeleryConsumer)(bad_message(body, given))


def test_canary_the_stock_consumer_deletes_a_task_it_does_not_know() -> None:
    message = bad_message("[[], {}, {}]", headers(task="nobody.knows"))
    handler_of(CeleryConsumer)(message)
    message.channel.basic_reject.assert_called_once_with(message.delivery_tag, requeue=False)


def test_canary_the_stock_consumer_deletes_a_message_with_a_bad_eta() -> None:
    message = bad_message("[[], {}, {}]", headers(eta="the day after"))
    handler_of(CeleryConsumer)(message)
    message.channel.basic_reject.assert_called_once_with(message.delivery_tag, requeue=False)


def test_canary_the_stock_consumer_deletes_what_it_cannot_decode() -> None:
    message = bad_message("{not json", headers())
    handler_of(CeleryConsumer)(message)
    message.channel.basic_ack.assert_called_once_with(message.delivery_tag, multiple=False)


def handler_of(
    consumer_class: type[CeleryConsumer], *, on_task_request: Any = None
) -> Callable[[Any], None]:
    """The real handler and strategy of a consumer that is connected to nothing."""
    from tests import plain_tasks  # noqa: F401  (registers KNOWN)

    consumer: Any = consumer_class.__new__(consumer_class)
    consumer.app = app
    consumer.hub = None
    consumer.pool = Mock(is_green=False)
    consumer.hostname = "stub@test"
    consumer.connection_errors = consumer.channel_errors = (OSError,)
    consumer.event_dispatcher = None
    consumer.timer = Mock()
    consumer.disable_rate_limits = True
    consumer.task_buckets = {}
    consumer.controller = Mock()
    consumer.controller.state.revoked = set()
    consumer.on_task_request = on_task_request or Mock()
    consumer.on_task_message = set()
    consumer._maximum_prefetch_restored = True
    consumer._pending_operations = []
    consumer.desk = Mock()
    consumer.strategies = {KNOWN: strategy.default(app.tasks[KNOWN], app, consumer)}
    return consumer.create_task_handler()  # type: ignore[no-any-return]


def bad_message(body: str, given: dict[str, Any]) -> Any:
    return Message(
        body=body,
        headers=given,
        delivery_tag="tag",
        delivery_info={"routing_key": "default", "exchange": "default"},
        content_type="application/json",
        content_encoding="utf-8",
        accept={"application/json"},
        channel=Mock(no_ack_consumers=None),
    )


def keeping(write: Callable[[], None]) -> parking.Keeping:
    return parking.Keeping(write, "a test", b"")


def envelope(given: dict[str, Any], *, routing_key: str = "default") -> bytes:
    """What kombu writes into Redis, with a routing key that it would not send."""
    return json.dumps(
        {
            "body": "[[], {}, {}]",
            "headers": given,
            "content-type": "application/json",
            "content-encoding": "utf-8",
            "properties": {
                "delivery_tag": str(uuid4()),
                "delivery_info": {"exchange": "default", "routing_key": routing_key},
            },
        }
    ).encode()


def dispatched_job(task: str) -> Job:
    job_id = uuid4()
    execute(
        "INSERT INTO tasks_job (id, task, queue, idempotency_key, fingerprint, payload, state,"
        " dispatch_no, dispatched_at)"
        " VALUES (%s, %s, 'default', %s, '', '{}', 'dispatched', 1, clock_timestamp())",
        job_id, task, str(job_id),
    )  # fmt: skip
    return Job.objects.get(id=job_id)


def state_of(job: Job) -> str:
    return str(Job.objects.values_list("state", flat=True).get(id=job.id))


def test_a_message_of_ours_names_its_job_and_dispatch() -> None:
    job_id = uuid4()
    given = {"id": str(job_id), "task": "a", "dispatch_no": 3}
    assert parking.job_of(SimpleNamespace(headers=given)) == Dispatched(job_id, "a", 3)
