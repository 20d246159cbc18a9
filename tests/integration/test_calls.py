"""Celery's ways to call a task: each becomes a job, or says what to write instead."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from celery import chord, group, shared_task, signals, signature
from celery.beat import ScheduleEntry, Scheduler
from django.db import transaction
from kombu import Queue

from project.celery import app
from tasks.enqueue import enqueue
from tasks.errors import InvalidKey, InvalidPayload, KeyConflict
from tasks.models import Job
from tasks.task import LedgerTask
from tasks.testing import run_jobs
from tests.habits import habit
from tests.processes import environment
from tests.sample_shop import tasks as shop

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    shop.SEEN.clear()


@contextmanager
def settings_of_celery(**values: Any) -> Iterator[None]:
    before = {name: app.conf[name] for name in values}
    app.conf.update(values)
    try:
        yield
    finally:
        app.conf.update(before)


@contextmanager
def routes_of_celery(routes: Any) -> Iterator[None]:
    with settings_of_celery(task_routes=routes):
        app.amqp.flush_routes()
        try:
            yield
        finally:
            for name in ("add", "import_row"):
                getattr(shop, name)._exec_options = None
    app.amqp.flush_routes()


def webhooks_for_all(*args: Any, **kwargs: Any) -> dict[str, Any]:
    return {"queue": "webhooks"}


def only_job() -> Job:
    return Job.objects.get()


# --- calls --------------------------------------------------------------------------------


@habit("delay", "apply_async")
@pytest.mark.parametrize(
    "call",
    [
        lambda: shop.add.delay(1, 2),
        lambda: shop.add.delay(1, y=2),
        lambda: shop.add.apply_async((1,), {"y": 2}),
        lambda: shop.add.apply_async(kwargs={"x": 1, "y": 2}),
    ],
)
def test_a_call_becomes_one_job_and_its_result_is_that_of_the_job(call: Callable[[], Any]) -> None:
    result = call()
    job = only_job()
    assert (result.id, job.payload) == (str(job.id), {"x": 1, "y": 2})
    run_jobs()
    assert result.get() == 3


@habit("delay")
def test_two_calls_are_two_jobs() -> None:
    assert shop.add.delay(1, 2).id != shop.add.delay(1, 2).id


@habit("argument types")
@pytest.mark.parametrize("value", [(1, 2), {1, 2}, date(2030, 1, 1), {1: "a"}])
def test_an_argument_that_celery_would_change_is_refused_with_the_hint_to_annotate(
    value: object,
) -> None:
    with pytest.raises(InvalidPayload, match=r"annotate|text"):
        shop.untyped.delay(value)
    assert not Job.objects.exists()


@habit("wrong arguments")
def test_arguments_that_do_not_fit_are_a_type_error_as_in_celery() -> None:
    with pytest.raises(TypeError, match="positional arguments"):
        shop.add.delay(1, 2, 3)
    with pytest.raises(TypeError, match="unexpected keyword"):
        shop.add.delay(1, z=3)
    with pytest.raises(InvalidPayload, match=r"\$\.x"):
        shop.add.delay("one")
    assert not Job.objects.exists()


@habit("signatures")
@pytest.mark.parametrize(
    "call",
    [
        lambda: shop.add.s(1, 2).delay(),
        lambda: shop.add.s(2).apply_async((1,)),
        lambda: shop.add.si(1, 2).apply_async(),
        lambda: shop.add.s(1, 2).set(countdown=0).apply_async(),
        lambda: signature(dict(shop.add.s(1, y=2)), app=app).delay(),
        lambda: signature("tests.sample_shop.tasks.add", args=(1, 2), app=app).delay(),
    ],
)
def test_a_signature_becomes_a_job(call: Callable[[], Any]) -> None:
    result = call()
    run_jobs()
    assert result.get() == 3
    assert result.id == str(only_job().id)


@habit("send_task")
def test_send_task_by_name_accepts_a_job() -> None:
    result = app.send_task("tests.sample_shop.tasks.add", [1], {"y": 2}, countdown=0)
    run_jobs()
    assert result.get() == 3


@habit("send_task")
def test_send_task_takes_countdown_eta_and_id_by_position_too() -> None:
    job_id = uuid4()
    app.send_task("tests.sample_shop.tasks.add", [1], {}, 60, None, str(job_id))
    assert only_job().id == job_id
    assert run_jobs() == []


@habit("send_task")
def test_send_task_refuses_what_apply_async_refuses() -> None:
    with pytest.raises(TypeError, match="exchange is not supported by LedgerTask: name a queue"):
        app.send_task("tests.sample_shop.tasks.add", [1], exchange="elsewhere")


SENDER = """
import django
django.setup()
from project.celery import app
print(app.send_task("tests.sample_shop.tasks.add", [1]).id)
"""


@habit("send_task")
@pytest.mark.django_db(transaction=True)
def test_send_task_finds_a_task_whose_module_the_caller_has_not_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SENDER],
        env=environment(), capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.split()[-1] == str(only_job().id)


@habit("send_task of an unknown name")
def test_a_name_that_nobody_knows_here_is_published_for_a_worker_that_does() -> None:
    result = app.send_task("elsewhere.task", [1], queue="elsewhere")
    with app.connection_for_read() as connection:
        message = connection.SimpleQueue("elsewhere").get(timeout=5)
        message.ack()
    assert (message.headers["task"], message.headers["id"]) == ("elsewhere.task", result.id)
    assert not Job.objects.exists()


@habit("task name")
def test_a_name_given_by_hand_is_the_name_everywhere() -> None:
    shop.named_by_hand.delay()
    assert only_job().task == "shop.renamed"
    assert app.send_task("shop.renamed").id
    run_jobs()
    assert {job.result for job in Job.objects.all()} == {"renamed"}


@habit("beat")
def test_an_entry_of_celery_beat_becomes_a_job() -> None:
    entry = ScheduleEntry(
        name="nightly", task="tests.sample_shop.tasks.add", schedule=timedelta(days=1), args=(1, 2),
        options={"queue": "bulk", "expires": 3600}, app=app,
    )  # fmt: skip
    scheduler = Scheduler(app, lazy=True)
    result = scheduler.apply_async(entry, producer=None, advance=False)
    job = only_job()
    assert (str(job.id), job.queue) == (result.id, "bulk")
    assert job.start_by > datetime.now(UTC)


# --- options ------------------------------------------------------------------------------


@habit("countdown", "eta")
@pytest.mark.parametrize(
    "options_at",
    [
        lambda _: {"countdown": 3600},
        lambda now: {"eta": now + timedelta(hours=1)},
        lambda now: {"eta": (now + timedelta(hours=1)).replace(tzinfo=None)},
        lambda now: {"eta": (now + timedelta(hours=1)).isoformat()},
    ],
    ids=["countdown", "eta", "naive eta", "text"],
)
def test_a_delay_is_a_due_time_in_the_ledger(
    options_at: Callable[[datetime], dict[str, Any]],
) -> None:
    shop.add.apply_async((1, 2), **options_at(datetime.now(UTC)))
    job = only_job()
    assert (job.state, job.due) == ("queued", False)
    assert abs(job.run_at - datetime.now(UTC) - timedelta(hours=1)) < timedelta(minutes=1)
    assert run_jobs() == []


@habit("eta")
def test_a_naive_eta_is_in_the_time_zone_of_the_celery_app() -> None:
    with settings_of_celery(timezone="Asia/Tokyo"):
        del app.timezone
        shop.add.apply_async((1,), eta=datetime(2026, 12, 1, 9, 0))  # noqa: DTZ001
    del app.timezone
    assert only_job().run_at == datetime(2026, 12, 1, 0, 0, tzinfo=UTC)


@habit("expires")
@pytest.mark.parametrize(
    "expires", [60, timedelta(seconds=60), "2199-01-01T00:00:00+00:00"], ids=str
)
def test_expires_is_the_latest_start(expires: Any) -> None:
    if isinstance(expires, timedelta):
        expires = datetime.now(UTC) + expires
    shop.add.apply_async((1, 2), expires=expires)
    assert only_job().start_by > datetime.now(UTC)
    assert len(run_jobs()) == 1


@habit("expires")
def test_what_expired_is_revoked_for_whoever_asks() -> None:
    result = shop.add.apply_async((1, 2), expires=-1)
    assert run_jobs() == []
    assert result.status == "REVOKED"
    assert only_job().failure == "expired"


@habit("priority")
def test_a_higher_priority_goes_first_from_minus_100_to_100() -> None:
    for text, priority in [("low", -100), ("usual", None), ("high", 100), ("nine", 9)]:
        shop.note.apply_async((text,), priority=priority)
    run_jobs()
    assert shop.SEEN == ["high", "nine", "usual", "low"]
    for wrong in (101, -101, 1.5, "5"):
        with pytest.raises(InvalidPayload, match="whole number from -100 to 100"):
            shop.note.apply_async(("x",), priority=wrong)


@habit("priority", "expires")
def test_priority_and_expires_of_the_task_hold_for_every_way_to_call_it() -> None:
    shop.named_by_hand.delay()
    app.send_task("shop.renamed")
    enqueue(shop.named_by_hand, {})
    for job in Job.objects.all():
        assert job.priority == 7
        assert job.start_by > datetime.now(UTC)
    assert shop.named_by_hand.apply_async(priority=0).id
    assert Job.objects.filter(priority=0).count() == 1


@habit("priority")
def test_a_child_inherits_the_priority_where_the_project_says_so() -> None:
    with settings_of_celery(task_inherit_parent_priority=True):
        shop.look_at_child.apply_async(priority=5)
        parent, child = run_jobs()
    assert (parent.priority, child.priority) == (5, 5)


@habit("queue")
@pytest.mark.parametrize("queue", ["bulk", Queue("bulk")])
def test_the_queue_of_the_call_wins_over_that_of_the_task(queue: Any) -> None:
    shop.add.apply_async((1,), queue=queue)
    assert only_job().queue == "bulk"


@habit("queue")
def test_the_queue_of_the_task_else_the_default_is_taken() -> None:
    shop.import_row.delay(uuid4())
    shop.add.delay(1)
    assert list(Job.objects.order_by("seq").values_list("queue", flat=True)) == ["bulk", "default"]


@habit("task_routes")
@pytest.mark.parametrize(
    "routes",
    [
        {"tests.sample_shop.*": {"queue": "webhooks"}},
        {"tests.sample_shop.tasks.add": "webhooks"},
        ([("tests.sample_shop.*", {"queue": Queue("webhooks")})],),
        webhooks_for_all,
    ],
)
def test_task_routes_name_the_queue_of_tasks_that_name_none(routes: Any) -> None:
    with routes_of_celery(routes):
        shop.add.delay(1)
        enqueue(shop.add, {"x": 2})
        shop.import_row.delay(uuid4())
        shop.add.apply_async((1,), queue="default")
    queues = Job.objects.order_by("seq").values_list("queue", flat=True)
    assert list(queues) == ["webhooks", "webhooks", "bulk", "default"]


@habit("task_routes")
def test_a_route_without_a_queue_is_refused() -> None:
    with (
        routes_of_celery({"tests.sample_shop.*": {"routing_key": "x"}}),
        pytest.raises(TypeError, match="name a queue, not routing_key"),
    ):
        shop.add.delay(1)


@habit("task_id")
def test_the_task_id_of_the_call_is_the_job_id_and_names_one_job() -> None:
    task_id = str(uuid4())
    first = shop.add.apply_async((1, 2), task_id=task_id)
    again = shop.add.apply_async((1, 2), task_id=task_id)
    assert first.id == again.id == task_id == str(only_job().id)
    with pytest.raises(KeyConflict):
        shop.add.apply_async((1, 3), task_id=task_id)


@habit("task_id")
def test_a_task_id_that_is_no_uuid_is_refused_and_names_the_key() -> None:
    with pytest.raises(TypeError, match="key='order-7'"):
        shop.add.apply_async((1, 2), task_id="order-7")


@habit("headers")
def test_headers_travel_in_the_ledger_and_cannot_pose_as_celerys_own() -> None:
    shop.look_at_request.apply_async(headers={"trace": "abc", "id": "mine", "retries": 7})
    [job] = run_jobs()
    assert job.result["headers"] == {"trace": "abc", "id": "mine", "retries": 7}
    assert (job.result["id"], job.result["retries"]) == (str(job.id), 0)


@habit("stamps")
def test_stamps_travel() -> None:
    sig = shop.look_at_request.s()
    sig.stamp(batch="b-1")
    sig.apply_async()
    [job] = run_jobs()
    assert job.result["stamps"] == {"batch": ["b-1"]}


@habit("publish options")
def test_options_about_publishing_have_no_meaning_and_do_no_harm() -> None:
    with app.producer_pool.acquire() as producer:
        options = {"producer": producer, "retry": False, "retry_policy": {"max_retries": 1}}
        shop.add.apply_async((1, 2), **options)
    assert only_job().state == "queued"


@pytest.mark.parametrize(
    ("row", "options", "instead"),
    [
        ("time_limit", {"time_limit": 5}, "set time_limit on the task or on its queue"),
        ("time_limit", {"soft_time_limit": 5}, "set soft_time_limit on the task"),
        ("serializer", {"serializer": "pickle"}, "annotate the parameters"),
        ("exchange", {"exchange": "x"}, "name a queue"),
        ("exchange", {"routing_key": "x"}, "name a queue"),
        ("compression", {"compression": "gzip"}, "there is nothing to compress"),
        ("shadow", {"shadow": "other"}, "show one name"),
        ("unknown options", {"colour": "red"}, "what travels goes into headers"),
    ],
)
@habit("time_limit", "serializer", "exchange", "compression", "shadow", "unknown options")
def test_an_option_that_would_be_ignored_is_refused(
    row: str, options: dict[str, Any], instead: str
) -> None:
    with pytest.raises(TypeError, match=instead):
        shop.add.apply_async((1, 2), **options)
    assert not Job.objects.exists()


# --- in a transaction ---------------------------------------------------------------------


@habit("transactions")
def test_a_rollback_takes_the_job_with_it() -> None:
    with transaction.atomic():
        shop.add.delay(1, 2)
        group(shop.add.s(i) for i in range(3)).delay()
        transaction.set_rollback(True)
    assert not Job.objects.exists()


# --- many ---------------------------------------------------------------------------------


@habit("group")
def test_a_group_is_one_job_per_member_and_its_results_join() -> None:
    result = group(shop.add.s(i, 1) for i in range(3)).apply_async()
    jobs = run_jobs()
    assert result.get() == [1, 2, 3]
    assert [str(job.id) for job in jobs] == [member.id for member in result.results]
    assert {job.headers["celery"]["group"] for job in jobs} == {result.id}


@habit("group")
def test_a_group_does_not_talk_to_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    def talk(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("talks to the broker")

    monkeypatch.setattr("redis.connection.AbstractConnection.connect", talk)
    monkeypatch.setattr("redis.connection.AbstractConnection.send_packed_command", talk)
    group(shop.add.s(i) for i in range(3)).apply_async()
    assert Job.objects.count() == 3


@habit("GroupResult.save")
def test_saving_a_group_result_names_what_to_keep() -> None:
    result = group(shop.add.s(i) for i in range(2)).apply_async()
    with pytest.raises(NotImplementedError, match="keep the ids of the jobs"):
        result.save()


@habit("chord")
@pytest.mark.parametrize(
    "call",
    [
        lambda: chord([shop.add.s(1), shop.add.s(2)])(shop.note.s()),
        (group(shop.add.s(1), shop.add.s(2)) | shop.note.s()).delay,
        lambda: chord([shop.plain_add.s(1, 1)])(shop.note.s()),
    ],
)
def test_a_chord_is_refused_before_any_job_is_accepted(call: Callable[[], Any]) -> None:
    with pytest.raises((NotImplementedError, TypeError), match="enqueue the next step"):
        call()
    assert not Job.objects.exists()


@habit("map, starmap, chunks")
@pytest.mark.parametrize(
    "call",
    [
        lambda: shop.add.map([1, 2]),
        lambda: shop.add.starmap([(1, 2)]),
        lambda: shop.add.chunks([(1, 2)], 10),
        lambda: app.signature("celery.map", kwargs={"task": shop.add.s(), "it": [1]}).delay(),
    ],
)
def test_map_and_chunks_are_refused_and_name_enqueue_many(call: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match="enqueue_many"):
        call()


# --- declarations -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "instead"),
    [
        ({"rate_limit": "ten a minute"}, "is not like '10/m'"),
        ({"acks_late": False}, "the ledger decides"),
        ({"acks_on_failure": False}, "the ledger decides"),
        ({"acks_on_failure_or_timeout": False}, "the ledger decides"),
        ({"reject_on_worker_lost": True}, "max_crashes"),
        ({"retry_on_worker_lost": True}, "max_crashes"),
        ({"store_errors_even_if_ignored": False}, "the ledger is the record"),
        ({"serializer": "pickle"}, "annotate the parameters"),
        ({"exchange": "x"}, "name a queue"),
        ({"compression": "gzip"}, "do not travel over the broker"),
        ({"pydantic": True}, "annotate the parameters"),
        ({"unique": "sometimes"}, "'always' or 'unfinished'"),
        ({"key": "a:{x}", "dedupe_window": 5}, "not both"),
        ({"key": "a:{y}"}, "y is no parameter of the task"),
        ({"max_crashes": 0}, "at least 1"),
        ({"max_retry": 3}, "do you mean max_retries"),
        ({"autoretry": (ValueError,)}, "do you mean autoretry_for"),
    ],
)
@habit("rate_limit", "acks_late", "reject_on_worker_lost", "serializer", "pydantic")
def test_a_declaration_that_would_be_ignored_is_refused_when_it_is_imported(
    options: dict[str, Any], instead: str
) -> None:
    name = f"refused.{uuid4()}"
    with pytest.raises((ValueError, InvalidKey), match=instead):

        @app.task(base=LedgerTask, name=name, lazy=False, **options)
        def refused(x: int) -> None: ...

    app.tasks.pop(name, None)


@habit("control.rate_limit")
def test_a_rate_limit_for_all_tasks_does_not_reach_a_ledger_task_unseen() -> None:
    name = f"refused.{uuid4()}"
    with (
        settings_of_celery(task_default_rate_limit="10/m"),
        pytest.raises(ValueError, match=r"Downstream\(rate="),
    ):
        app.task(base=LedgerTask, name=name, lazy=False)(webhooks_for_all)
    app.tasks.pop(name, None)


@habit("control.rate_limit")
def test_a_rate_limit_at_run_time_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Downstream\(rate="):
        app.control.rate_limit("tests.sample_shop.tasks.add", "10/m")


@habit("custom base class")
def test_options_of_a_base_class_are_inherited() -> None:
    task = shop.import_row
    assert (task.max_retries, task.default_retry_delay, task.queue) == (4, 30, "bulk")
    task.delay(uuid4(), "retry")
    [job] = run_jobs()
    assert (job.state, job.attempts) == ("queued", 1)
    assert job.run_at - datetime.now(UTC) > timedelta(seconds=25)


@habit("class-based tasks")
def test_a_task_written_as_a_class_is_registered_and_runs() -> None:
    class Multiply(LedgerTask):
        name = "shop.multiply"
        max_retries = 1

        def run(self, x: int, y: int) -> int:
            return x * y

    task = app.register_task(Multiply())
    result = task.delay(3, y=4)
    run_jobs()
    assert result.get() == 12
    app.tasks.pop("shop.multiply")


@habit("async def")
def test_a_coroutine_function_runs_to_its_end_and_its_errors_are_retried() -> None:
    fine, fails = shop.asynchronous.delay(), shop.asynchronous.delay(fail=True)
    run_jobs()
    assert fine.get() == "awaited"
    job = Job.objects.get(id=fails.id)
    assert (job.state, job.attempts, job.failure) == ("failed", 2, "exhausted")


@habit("plain call")
def test_a_task_called_directly_is_a_plain_function() -> None:
    assert shop.add(1, 2) == 3
    assert not Job.objects.exists()


# --- self.request, hooks, signals ---------------------------------------------------------


@habit("bind", "self.request")
def test_the_request_is_that_of_the_job() -> None:
    shop.look_at_request.apply_async(priority=4, queue="bulk")
    [job] = run_jobs()
    request = job.result
    assert request["id"] == request["root_id"] == str(job.id)
    assert (request["retries"], request["parent_id"], request["headers"]) == (0, None, {})
    assert request["delivery_info"]["routing_key"] == "bulk"
    assert request["delivery_info"]["priority"] == 4
    assert (request["called_directly"], request["is_eager"]) == (False, False)
    assert (request["args"], request["kwargs"]) == ([], {})


@habit("self.request")
def test_a_job_enqueued_by_a_job_knows_its_parent_and_root() -> None:
    shop.look_at_child.delay()
    parent, child = run_jobs()
    assert child.result["parent_id"] == child.result["root_id"] == str(parent.id)


@habit("hooks", "signals")
@pytest.mark.parametrize(
    ("outcome", "hooks"),
    [
        ("fine", ["before_start", "on_success", "after_return"]),
        ("retry", ["before_start", "on_retry"]),
        ("fail", ["before_start", "on_failure", "after_return"]),
    ],
)
def test_hooks_and_signals_see_the_arguments_as_the_body_does(
    outcome: str, hooks: list[str]
) -> None:
    sent: list[str] = []
    seen: list[Any] = []

    def prerun(task: Any, kwargs: Any, **_: Any) -> None:
        sent.append("prerun")
        seen.append(kwargs)

    def postrun(**_: Any) -> None:
        sent.append("postrun")

    def ended(signal: Any, **_: Any) -> None:
        sent.append(signal.name)

    ending = [signals.task_success, signals.task_retry, signals.task_failure]
    signals.task_prerun.connect(prerun)
    signals.task_postrun.connect(postrun)
    for signal in ending:
        signal.connect(ended)
    row = uuid4()
    try:
        shop.import_row._tracer = None
        shop.import_row.delay(row, outcome)
        run_jobs()
    finally:
        signals.task_prerun.disconnect(prerun)
        signals.task_postrun.disconnect(postrun)
        for signal in ending:
            signal.disconnect(ended)
    assert [name for name, *_ in shop.SEEN] == hooks
    assert seen == [{"row": row, "outcome": outcome}]
    name = {"fine": "task_success", "retry": "task_retry", "fail": "task_failure"}[outcome]
    assert sent == ["prerun", name, "postrun"]


@habit("signals")
def test_both_publish_signals_are_sent_and_headers_added_by_them_travel() -> None:
    seen: list[str] = []

    def before(headers: dict[str, Any], sender: str, **_: Any) -> None:
        seen.append(headers["id"])
        headers["added"] = sender

    def after(headers: dict[str, Any], **_: Any) -> None:
        seen.append(headers["id"])

    signals.before_task_publish.connect(before)
    signals.after_task_publish.connect(after)
    try:
        result = shop.look_at_request.delay()
    finally:
        signals.before_task_publish.disconnect(before)
        signals.after_task_publish.disconnect(after)
    [job] = run_jobs()
    assert seen == [result.id, result.id]
    assert job.result["headers"] == {"added": "tests.sample_shop.tasks.look_at_request"}


@habit("Ignore")
def test_ignore_ends_the_job_as_cancelled_with_its_reason() -> None:
    result = shop.ignore.delay()
    [job] = run_jobs()
    assert (job.state, job.cancel_reason) == ("cancelled", "ignored: not needed any more")
    assert result.status == "REVOKED"


@habit("throws")
def test_an_expected_error_fails_the_job_and_is_no_error_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shop.fail_as_expected.delay()
    [job] = run_jobs()
    assert (job.state, job.error_type) == ("failed", "tests.sample_shop.tasks.Expected")
    raised = [record for record in caplog.records if "raised" in record.getMessage()]
    assert [record.levelname for record in raised] == ["INFO"]


@habit("replace")
def test_replace_is_refused_and_names_link() -> None:
    @shared_task(base=LedgerTask, bind=True, name="shop.replaces")
    def replaces(self: Any) -> Any:
        return self.replace(shop.add.s(1, 2))

    replaces.delay()
    [job] = run_jobs()
    assert (job.state, job.error_type) == ("failed", "builtins.TypeError")
    assert "link=next.s()" in job.error_message
    app.tasks.pop("shop.replaces")


@habit("sensitive arguments")
def test_celerys_own_log_records_do_not_hold_sensitive_arguments(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shop.charge.delay(7, "4111222233334444")
    run_jobs()
    assert caplog.records
    for record in caplog.records:
        assert "4111222233334444" not in str(vars(record).get("data", ""))
        assert "4111222233334444" not in record.getMessage()
