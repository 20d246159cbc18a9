"""What ``manage.py check`` says about the tasks of a project."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import current_app
from django.core import checks

from tasks.task import LedgerTask
from tasks.topology import Queue, Topology


@pytest.fixture
def declare() -> Iterator[Callable[..., Any]]:
    """Registers a task for as long as the test lasts."""
    names: list[str] = []

    def registered(function: Callable[..., Any], **options: Any) -> Any:
        name = f"checked.{function.__name__}"
        names.append(name)
        task = current_app.task(
            function, name=name, shared=False, **{"base": LedgerTask, **options}
        )
        return current_app.tasks[task.name]

    yield registered
    for name in names:
        current_app.tasks.pop(name, None)


def found(task: Any) -> list[tuple[str | None, str]]:
    return [(m.id, m.msg) for m in checks.run_checks() if m.obj == task.name]


def capture(order_id: int, card: str) -> None: ...


def anything(**given: Any) -> None: ...


def test_a_sound_task_has_no_message(declare: Callable[..., Any]) -> None:
    task = declare(capture, key="capture:{order_id}", sensitive=("card",))
    assert found(task) == []


def test_a_task_that_takes_any_name_may_use_any_in_its_key(declare: Callable[..., Any]) -> None:
    task = declare(anything, key="any:{order_id}", sensitive=("card",))
    assert found(task) == []


def test_parameters_without_a_name_are_refused_with_the_remedy(declare: Callable[..., Any]) -> None:
    def total(*amounts: int) -> None: ...

    [(code, text)] = found(declare(total))
    assert code == "tasks.E003"
    assert "*amounts" in text
    assert "take one list" in text


@pytest.mark.parametrize("key", ["capture:{order}", "capture:{}", "{order_id", "constant"])
def test_a_key_template_that_can_never_work_is_refused(
    declare: Callable[..., Any], key: str
) -> None:
    task = declare(capture)
    task.key = key  # as the setting task_annotations would
    [(code, text)] = found(task)
    assert code == "tasks.E004"
    assert repr(key) in text


def test_a_sensitive_name_that_hides_nothing_is_refused(declare: Callable[..., Any]) -> None:
    [(code, text)] = found(declare(capture, sensitive=("card", "cvc")))
    assert (code, text) == ("tasks.E005", "sensitive names cvc, which the task does not take.")


@pytest.mark.parametrize("function", [capture, anything])
def test_a_text_in_place_of_a_tuple_hides_nothing_and_is_refused(
    declare: Callable[..., Any], function: Callable[..., Any]
) -> None:
    [(code, text)] = found(declare(function, sensitive="card"))
    assert code == "tasks.E005"
    assert "not a tuple" in text


@pytest.mark.parametrize("key", ["{order_id}:{card}", "{card.last4}"])
def test_a_key_made_of_something_sensitive_is_refused(
    declare: Callable[..., Any], key: str
) -> None:
    [(code, text)] = found(declare(capture, key=key, sensitive=("card",)))
    assert code == "tasks.E006"
    assert text.endswith("holds sensitive values: card.")


def test_plain_celery_tasks_are_named_in_one_warning(declare: Callable[..., Any]) -> None:
    def resize(image_id: int) -> None: ...

    declare(resize, base=current_app.Task)
    [warning] = [m for m in checks.run_checks() if m.id == "tasks.W001"]
    assert "checked.resize" in warning.msg
    assert "celery." not in warning.msg
    assert not warning.is_serious()


def test_a_queue_that_nobody_declared_is_said_with_what_was_meant(
    declare: Callable[..., Any],
) -> None:
    task = declare(capture, queue="payment")
    [warning] = [m for m in checks.run_checks() if m.obj == task.name]
    assert warning.id == "tasks.W002"
    assert "payments" in (warning.hint or "")
    assert "-Q payment" in warning.msg


def test_a_plain_body_in_a_slot_is_named_and_a_coroutine_is_not(
    declare: Callable[..., Any],
) -> None:
    def blocks(url: str) -> None: ...

    async def waits(url: str) -> None: ...

    plain = declare(blocks, queue="webhooks")
    retried = declare(waits, queue="webhooks", autoretry_for=(ConnectionError,))
    told = [m.obj for m in checks.run_checks() if m.id == "tasks.W004"]
    assert plain.name in told
    assert retried.name not in told


def test_the_project_as_it_comes_has_no_message() -> None:
    """In a process of its own: Celery runs the checks while the tasks are being imported."""
    done = subprocess.run(
        [sys.executable, "manage.py", "check", "--settings=project.settings"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "System check identified no issues (0 silenced)."
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("url", "time_limit", "said"),
    [("amqp://a", 1790, True), ("amqp://a", 1700, False), ("redis://a", 7200, False)],
)
def test_a_run_that_rabbitmq_would_not_wait_for_is_said(
    url: str, time_limit: int, said: bool, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.TASKS_TOPOLOGY = Topology.of([Queue("long", time_limit=time_limit, drain=20)])
    monkeypatch.setitem(current_app.conf, "broker_url", url)
    assert any(m.id == "tasks.W003" for m in checks.run_checks()) == said
