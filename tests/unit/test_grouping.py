"""Which jobs share a message, and how many."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from celery import shared_task

from tasks import grouping
from tasks.grouping import grouped, largest, size
from tasks.ledger import Dispatched
from tasks.task import LedgerTask
from tasks.topology import Downstream, Queue


@shared_task(base=LedgerTask, name="g.short")
def short() -> None: ...


@shared_task(base=LedgerTask, name="g.irreversible", max_crashes=1)
def irreversible() -> None: ...


@shared_task(base=LedgerTask, name="g.atomic", atomic=True)
def atomic() -> None: ...


QUEUE = Queue("q", processes=2, batch=50)


def job(task: str = "a", **marks: Any) -> Dispatched:
    return Dispatched(uuid4(), task, 1, **marks)


def sizes(jobs: list[Dispatched], at_most: int = 50) -> list[int]:
    found = grouped(jobs, lambda _: at_most)
    assert [job for group in found for job in group] == jobs
    return [len(group) for group in found]


def test_neighbours_of_one_task_share_a_message_in_order() -> None:
    assert sizes([job() for _ in range(120)]) == [50, 50, 20]


def test_jobs_of_different_tasks_never_do() -> None:
    assert sizes([job("a"), job("a"), job("b"), job("a"), job("a")]) == [2, 1, 2]


def test_ordered_jobs_travel_alone() -> None:
    assert sizes([job(), job(is_ordered=True), job(is_ordered=True), job(), job()]) == [1, 1, 1, 2]


def test_what_died_once_travels_alone() -> None:
    assert sizes([job(), job(), job(is_alone=True), job(), job()]) == [2, 1, 2]


def test_one_job_a_message_is_one_job_a_message() -> None:
    assert sizes([job() for _ in range(4)], at_most=1) == [1] * 4


@pytest.mark.parametrize(
    ("mean_s", "jobs"), [(0.0001, 50), (0.005, 50), (0.01, 25), (0.1, 2), (0.2, 1), (9.0, 1)]
)
def test_a_message_holds_what_is_expected_to_run_for_250_ms(mean_s: float, jobs: int) -> None:
    assert size(QUEUE, short.name, {short.name: mean_s}) == jobs


def test_what_was_never_measured_travels_alone() -> None:
    assert size(QUEUE, short.name, {}) == 1
    assert size(QUEUE, "g.unknown here", {"g.unknown here": 0.001}) == 1


def test_a_queue_without_batches_sends_each_job_alone() -> None:
    assert size(Queue("q", processes=2), short.name, {short.name: 0.001}) == 1


@pytest.mark.parametrize("task", [irreversible, atomic])
def test_what_must_not_share_the_fate_of_others_travels_alone(task: Any) -> None:
    assert size(QUEUE, task.name, {task.name: 0.001}) == 1


def test_before_a_limited_downstream_no_slot_takes_the_part_of_the_others() -> None:
    bank = Downstream("bank", max_concurrency=20)
    means = {short.name: 0.001}
    assert size(Queue("q", bank, replicas=4, batch=50), short.name, means) == 1
    assert size(Queue("q", bank, processes=2, batch=50), short.name, means) == 10


def test_coroutines_of_a_message_have_a_slot_each() -> None:
    assert size(Queue("q", slots=20, batch=50), short.name, {short.name: 0.001}) == 20


def test_the_window_is_made_for_the_largest_message() -> None:
    assert largest(QUEUE, {}) == 1
    assert largest(QUEUE, {short.name: 0.01, atomic.name: 0.0001}) == 25
    assert grouping.MESSAGE_S == 0.25
