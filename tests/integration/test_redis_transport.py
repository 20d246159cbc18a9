"""A worker outlives its Redis."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from kombu import Connection, Exchange, Queue
from kombu.exceptions import OperationalError
from kombu.transport import redis as kombu_redis
from redis.exceptions import TimeoutError as RedisTimeoutError

from devtools.proxy import FaultyProxy
from devtools.servers import Redis
from project.celery import app
from tasks import redis_transport
from tasks.models import ParkedMessage
from tests.broker import Corner, trace_table
from tests.processes import wait_until, worker

pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[Redis]:
    with Redis(tmp_path, durable=True) as server:
        yield server


@pytest.mark.django_db(transaction=True)
def test_a_worker_with_an_unacked_message_survives_three_restarts_of_redis(
    own_redis: Redis,
) -> None:
    corner = Corner(own_redis.url)
    with (
        trace_table() as trace,
        worker("default", "-I", "tests.plain_tasks", "-c", "2", env=corner.env) as process,
    ):
        corner.send_task("plain.trace_and_sleep", "long", 600)
        wait_until(lambda: trace.notes == ["long"], what="the long task runs")
        for number in range(3):
            own_redis.restart()
            corner.send_task("plain.trace", f"after restart {number}")
            wait_until(
                lambda: len(trace.notes) == number + 2,  # noqa: B023  (it is called here)
                within_s=20,
                what="a task runs after the restart",
            )
        assert process.is_running
        process.send(signal.SIGKILL)


GOOD: dict[str, Any] = {
    "body": "e30=",
    "headers": {},
    "properties": {
        "delivery_tag": "tag",
        "delivery_info": {"exchange": "", "routing_key": "default"},
        "body_encoding": "base64",
    },
}
WRONG_PROPERTIES: list[dict[str, Any]] = [
    {"delivery_tag": ["x"]},
    {"delivery_tag": {"a": 1}},
    {"delivery_tag": "\ud800"},
    {"delivery_info": "text"},
    {"delivery_info": {}},
    {"delivery_info": {"exchange": {}, "routing_key": []}},
    {"body_encoding": "nope"},
    {"body_encoding": 7},
]
BAD = [
    {**GOOD, "headers": [1]},
    {**GOOD, "headers": "x"},
    {**GOOD, "body": 7},
    {**GOOD, "body": "x"},
    {**GOOD, "properties": [1]},
    *({**GOOD, "properties": {**GOOD["properties"], **wrong}} for wrong in WRONG_PROPERTIES),
]


@pytest.mark.parametrize("item", BAD)
def test_an_envelope_that_kombu_would_stumble_over_is_no_message(item: dict[str, Any]) -> None:
    assert redis_transport.is_message(GOOD)
    assert not redis_transport.is_message(item)


@pytest.mark.django_db(transaction=True)
def test_an_envelope_that_cannot_be_read_is_parked_and_the_worker_goes_on() -> None:
    corner = Corner()
    unreadable = [
        b"[" * 100_000,
        b"9" * 5_000,
        b'{"__type__": "datetime", "__value__": "never"}',
        b'{"__type__": [], "__value__": 1}',
    ]
    items = [*unreadable, *(json.dumps(item).encode() for item in BAD)]
    with (
        trace_table() as trace,
        worker("default", "-I", "tests.plain_tasks", "-c", "1", env=corner.env) as process,
    ):
        corner.push(*items)
        corner.send_task("plain.trace", "alive")
        wait_until(lambda: trace.notes == ["alive"], what="the good task behind them runs")
        wait_until(lambda: ParkedMessage.objects.count() == len(items), what="all are parked")
        wait_until(lambda: corner.unacked() == 0, what="all are acked")
        assert process.is_running
    bodies = {bytes(body) for body in ParkedMessage.objects.values_list("body", flat=True)}
    assert bodies >= set(unreadable)
    corner.clear()


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_cured_channel_knows_its_server_after_the_connection_was_dropped(
    asynchronous: bool,
) -> None:
    channel = channel_whose_connection_was_dropped(redis_transport.Transport)
    assert channel._connparams(asynchronous=asynchronous)["port"]


def test_an_ack_after_the_connection_was_dropped_is_no_error() -> None:
    corner = Corner()
    corner.send_task("any")
    with connection(redis_transport.Transport, corner.prefix) as broker:
        message = Queue("default", Exchange("default"), routing_key="default")(broker).get()
        assert message is not None
        assert corner.unacked() == 1
        broker.collect()
        message.ack()
    # Dropping the connection has returned the message: it will be delivered again.
    assert (corner.unacked(), corner.waiting()) == (0, 1)
    corner.clear()


def test_an_ack_that_redis_does_not_hear_frees_the_place_of_its_message() -> None:
    assert takes_another_after_a_failed_ack(redis_transport.Transport)


def test_a_channel_makes_one_client_for_all_its_commands_and_another_one_for_another_pool() -> None:
    with connection(redis_transport.Transport, Corner().prefix) as broker:
        channel = broker.default_channel
        with channel.conn_or_acquire() as first, channel.conn_or_acquire() as second:
            assert first is second
            assert first.ping()
        channel._disconnect_pools()
        with channel.conn_or_acquire() as other:
            assert other is not first
            assert other.ping()


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
def test_every_redis_address_gets_the_cured_transport(scheme: str) -> None:
    with Connection(f"{scheme}://127.0.0.1:1/0?ssl_cert_reqs=required") as broker:
        assert broker.get_transport_cls() is redis_transport.Transport
        assert bool(broker.ssl)


def test_publishing_to_a_mute_broker_fails_soon() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        options = app.conf.broker_transport_options
        url = f"redis://127.0.0.1:{mute.getsockname()[1]}/0"
        started = time.monotonic()
        with (
            Connection(
                url,
                transport_options=options,
                connect_timeout=app.conf.broker_connection_timeout,
            ) as broker,
            pytest.raises(OperationalError),
        ):
            app.send_task("any", connection=broker)
        assert time.monotonic() - started < 3.0


def test_canary_a_stock_channel_forgets_its_server_when_the_connection_is_dropped() -> None:
    channel = channel_whose_connection_was_dropped(kombu_redis.Transport)
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute"):
        channel._connparams()


def test_canary_a_stock_channel_counts_a_message_for_ever_when_its_ack_fails() -> None:
    assert not takes_another_after_a_failed_ack(kombu_redis.Transport)


def test_canary_a_stock_channel_makes_a_client_for_each_command() -> None:
    with connection(kombu_redis.Transport, Corner().prefix) as broker:
        channel = broker.default_channel
        with channel.conn_or_acquire() as first, channel.conn_or_acquire() as second:
            assert first is not second


def test_canary_a_stock_transport_raises_what_it_cannot_read_into_the_loop() -> None:
    corner = Corner()
    with connection(kombu_redis.Transport, corner.prefix) as broker:
        queue = Queue("default", Exchange("default"), routing_key="default")
        with broker.Consumer(queue, on_message=print):
            corner.push(b"hello")
            with pytest.raises(ValueError, match="Expecting value"):
                broker.drain_events(timeout=5)


def takes_another_after_a_failed_ack(transport: type[kombu_redis.Transport]) -> bool:
    """Redis is mute while a message is acked; the next one may come, or not."""
    corner = Corner()
    corner.send_task("any")
    address = urlsplit(corner.url)
    with FaultyProxy(str(address.hostname), address.port or 6379) as proxy:
        url = corner.url.replace(f":{address.port}", f":{proxy.port}")
        options = {"global_keyprefix": corner.prefix, "socket_timeout": 0.5}
        with Connection(url, transport=transport, transport_options=options) as broker:
            message = Queue("default", Exchange("default"), routing_key="default")(broker).get()
            assert message is not None
            message.channel.basic_qos(0, 1, False)
            assert not message.channel.qos.can_consume()
            proxy.black_hole()
            with pytest.raises(RedisTimeoutError):
                message.ack()
            proxy.pass_on()
            return bool(message.channel.qos.can_consume())


def channel_whose_connection_was_dropped(transport: type[kombu_redis.Transport]) -> Any:
    """As the consumer drops it after an error: collected, and no longer held by anybody."""
    with connection(transport, "") as broker:
        channel = broker.channel()
        broker.collect()
    return channel


def connection(transport: type[kombu_redis.Transport], prefix: str) -> Connection:
    return Connection(
        Corner().url, transport=transport, transport_options={"global_keyprefix": prefix}
    )
