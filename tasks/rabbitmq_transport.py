"""The RabbitMQ transport of kombu, with three things that the one of Redis has.

Every answer has a deadline: asked for a channel, a queue or a confirm, a broker that has gone
mute would be waited for without end.

A batch is one round trip: its messages are sent one after the other and their confirms are
awaited together, where kombu waits for each. A message that no queue took, because somebody
deleted it, counts as not sent.

All names on the broker bear a prefix, so that several installations can share a virtual host.
"""

from __future__ import annotations

import time
from typing import Any

import kombu.transport
from amqp.exceptions import MessageNacked, RecoverableConnectionError
from kombu.transport import pyamqp as kombu_amqp

# Any: the published types lack half of what it has.
pyamqp: Any = kombu_amqp

# Seconds; the transport option ``answers_within_s``. A confirm may wait for a disk.
ANSWERS_WITHIN_S = 5.0


class Batch:
    """Messages on their way to the broker whose confirms are not there yet."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.waiting: set[int] = set()
        self.refused: Exception | None = None
        self.handlers = {
            "basic_ack": self.on_ack,
            "basic_nack": self.on_nack,
            "basic_return": self.on_return,
        }
        channel.select_confirms()
        for event, handler in self.handlers.items():
            channel.events[event].add(handler)

    def publish(self, message: Any, **options: Any) -> None:
        options.pop("confirm_timeout", None)
        options["mandatory"] = True
        self.channel.send_unconfirmed(message, **options)
        self.waiting.add(self.channel.sent)

    def flush(self) -> None:
        """Returns when the broker has taken every message, else raises."""
        deadline = time.monotonic() + self.channel.answers_within_s
        while self.waiting:
            if self.channel.connection is None:
                raise RecoverableConnectionError("the channel was closed before the confirms")
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"{len(self.waiting)} messages were not confirmed in time")
            self.channel.connection.drain_events(timeout=left_s)
        if self.refused is not None:
            raise self.refused

    def discard(self) -> None:
        """What is sent cannot be called back."""
        self.waiting.clear()

    def close(self) -> None:
        for event, handler in self.handlers.items():
            self.channel.events[event].discard(handler)

    def on_ack(self, delivery_tag: int, multiple: bool) -> None:
        if multiple:
            self.waiting = {tag for tag in self.waiting if tag > delivery_tag}
        else:
            self.waiting.discard(delivery_tag)

    def on_nack(self, delivery_tag: int, multiple: bool) -> None:
        self.refused = MessageNacked()
        self.on_ack(delivery_tag, multiple)

    def on_return(self, error: Exception, exchange: str, key: str, message: Any) -> None:
        """Comes before the confirm of the message."""
        self.refused = RecoverableConnectionError(f"no queue took it: {error}")


class Channel(pyamqp.Channel):
    _confirm_selected: bool
    sent = 0  # since confirms were asked for: their number is that of the last message

    def __init__(self, connection: Any, *args: Any, **kwargs: Any) -> None:
        self.answers_within_s = connection.answers_within_s
        self.prefix = connection.name_prefix
        super().__init__(connection, *args, **kwargs)

    def wait(self, method: Any, callback: Any = None, timeout: Any = None, **options: Any) -> Any:
        return super().wait(method, callback, timeout or self.answers_within_s, **options)

    # --- confirms ---------------------------------------------------------------------

    def create_publish_batch(self, max_size: int) -> Batch:
        return Batch(self)

    def select_confirms(self) -> None:
        if not self._confirm_selected:
            self.confirm_select()
            self._confirm_selected, self.sent = True, 0

    def send_unconfirmed(self, message: Any, **options: Any) -> None:
        self._basic_publish(message, **options)

    def _basic_publish(
        self, msg: Any, exchange: str = "", routing_key: str = "", **options: Any
    ) -> Any:
        self.sent += 1
        return super()._basic_publish(
            msg, self.name(exchange), self.key(exchange, routing_key), **options
        )

    basic_publish = _basic_publish

    # --- names ------------------------------------------------------------------------

    def name(self, plain: str) -> str:
        """What the broker names itself, it knows by no other name."""
        return f"{self.prefix}{plain}" if plain and not plain.startswith("amq.") else plain

    def key(self, exchange: str, routing_key: str) -> str:
        """To the default exchange, the key is the name of a queue."""
        return routing_key if exchange else self.name(routing_key)

    def exchange_declare(self, exchange: str, *args: Any, **options: Any) -> Any:
        return super().exchange_declare(self.name(exchange), *args, **options)

    def exchange_delete(self, exchange: str, *args: Any, **options: Any) -> Any:
        return super().exchange_delete(self.name(exchange), *args, **options)

    def exchange_bind(self, destination: str, source: str = "", *args: Any, **options: Any) -> Any:
        return super().exchange_bind(self.name(destination), self.name(source), *args, **options)

    def exchange_unbind(
        self, destination: str, source: str = "", *args: Any, **options: Any
    ) -> Any:
        return super().exchange_unbind(self.name(destination), self.name(source), *args, **options)

    def queue_declare(self, queue: str = "", *args: Any, **options: Any) -> Any:
        return super().queue_declare(self.name(queue), *args, **options)

    def queue_bind(self, queue: str, exchange: str = "", *args: Any, **options: Any) -> Any:
        return super().queue_bind(self.name(queue), self.name(exchange), *args, **options)

    def queue_unbind(self, queue: str, exchange: str, *args: Any, **options: Any) -> Any:
        return super().queue_unbind(self.name(queue), self.name(exchange), *args, **options)

    def queue_purge(self, queue: str = "", *args: Any, **options: Any) -> Any:
        return super().queue_purge(self.name(queue), *args, **options)

    def queue_delete(self, queue: str = "", *args: Any, **options: Any) -> Any:
        return super().queue_delete(self.name(queue), *args, **options)

    def basic_get(self, queue: str = "", *args: Any, **options: Any) -> Any:
        return super().basic_get(self.name(queue), *args, **options)

    def basic_consume(self, queue: str = "", *args: Any, **options: Any) -> Any:
        return super().basic_consume(self.name(queue), *args, **options)

    def message_to_python(self, raw_message: Any) -> Any:
        """A task sees the names that it knows."""
        info = raw_message.delivery_info
        info["exchange"] = info["exchange"].removeprefix(self.prefix)
        if not info["exchange"]:
            info["routing_key"] = info["routing_key"].removeprefix(self.prefix)
        return super().message_to_python(raw_message)


class Connection(pyamqp.Connection):
    Channel = Channel

    def __init__(
        self,
        *args: Any,
        name_prefix: str = "",
        answers_within_s: float = ANSWERS_WITHIN_S,
        **kwargs: Any,
    ) -> None:
        self.name_prefix = name_prefix
        self.answers_within_s = answers_within_s
        super().__init__(*args, **kwargs)

    def wait(self, method: Any, callback: Any = None, timeout: Any = None, **options: Any) -> Any:
        return super().wait(method, callback, timeout or self.answers_within_s, **options)


class Transport(pyamqp.Transport):
    Connection = Connection
    implements = pyamqp.Transport.implements.extend(batch_publish=True)


class SSLTransport(pyamqp.SSLTransport):
    Connection = Connection
    implements = pyamqp.SSLTransport.implements.extend(batch_publish=True)


def install() -> None:
    """Every ``amqp://`` and ``amqps://`` connection made from now on is one of these."""
    for scheme, name in {
        "amqp": "Transport",
        "pyamqp": "Transport",
        "amqps": "SSLTransport",
    }.items():
        kombu.transport.TRANSPORT_ALIASES[scheme] = f"{__name__}:{name}"
        # Somebody may have connected before.
        kombu.transport._transport_cache.pop(scheme, None)  # type: ignore[attr-defined]
