"""The death of a pool's child: noticed at once, and no reason to end the worker."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from multiprocessing import Pipe
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from celery.concurrency.asynpool import AsynPool
from celery.concurrency.asynpool import ResultHandler as StockResultHandler

from devtools.bench.cpu import children_of
from tasks.prefork import Pool, ResultHandler
from tests.broker import Corner
from tests.processes import wait_until, worker

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def corner() -> Iterator[Corner]:
    corner = Corner()
    yield corner
    corner.clear()


@pytest.mark.django_db(transaction=True)
def test_a_dead_child_is_replaced_within_a_second_each_time(corner: Corner) -> None:
    """Celery by itself takes up to five."""
    with worker("default", "-c", "2", env=corner.env) as process:
        for _ in range(5):
            victim = children_of(process.pid)[0]
            os.kill(victim, signal.SIGKILL)
            began = time.monotonic()
            wait_until(
                lambda: victim not in children_of(process.pid),  # noqa: B023  (called here)
                what="it is buried",
                every_s=0.01,
            )
            assert time.monotonic() - began < 1
            wait_until(lambda: len(children_of(process.pid)) == 2, what="another takes its place")


def watched_again(pool: type[AsynPool]) -> Mock:
    """The broker was lost just after the pipe of a child had closed."""
    reader, writer = os.pipe()
    hub = Mock()
    child: Any = SimpleNamespace(_sentinel_poll=None, _popen=SimpleNamespace(sentinel=reader))
    try:
        hub.add_reader.side_effect = lambda fd, *_: os.fstat(fd)
        pool._track_child_process(Mock(spec=pool), child, hub)
    finally:
        os.close(reader)
        os.close(writer)
        if child._sentinel_poll is not None:
            os.close(child._sentinel_poll)
    return hub


def test_a_child_whose_pipe_has_closed_is_watched_again() -> None:
    hub = watched_again(Pool)
    assert hub.add_reader.call_args.args[0] > 2


def test_canary_a_stock_pool_takes_no_descriptor_for_one() -> None:
    with pytest.raises(TypeError):
        watched_again(AsynPool)


def seconds_at_a_silent_child(handler: type[StockResultHandler]) -> float:
    """For how long a stopping pool does not look at the others."""
    reader, writer = Pipe(duplex=False)
    child = SimpleNamespace(outq=SimpleNamespace(_reader=reader))
    flushing: Any = object.__new__(handler)
    flushing._hub = None
    with reader, writer:
        began = time.monotonic()
        assert (
            flushing._flush_outqueue(reader.fileno(), Mock(), {reader.fileno(): child}, Mock())
            is None
        )
        return time.monotonic() - began


def test_a_stopping_pool_does_not_sleep_at_a_child_that_has_nothing_to_say() -> None:
    assert seconds_at_a_silent_child(ResultHandler) < 0.4


def test_canary_a_stock_pool_sleeps_half_a_second_there() -> None:
    assert seconds_at_a_silent_child(StockResultHandler) >= 0.5


def test_a_stopping_pool_takes_a_result_and_forgets_a_child_that_is_gone() -> None:
    flushing: Any = object.__new__(ResultHandler)
    flushing._hub = None
    reader, writer = Pipe(duplex=False)
    child = SimpleNamespace(outq=SimpleNamespace(_reader=reader))
    fd, remove, took = reader.fileno(), Mock(), Mock()
    writer.send("result")
    flushing._flush_outqueue(fd, remove, {fd: child}, took)
    took.assert_called_once_with("result")
    reader.close()
    flushing._flush_outqueue(fd, remove, {fd: child}, took)
    remove.assert_called_once_with(fd)
    flushing._flush_outqueue(fd, remove, {}, took)
    assert remove.call_count == 2
