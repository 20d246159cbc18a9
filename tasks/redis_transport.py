"""The Redis transport of kombu, cured of three bugs that end or paralyse workers, and of a waste.

When Redis restarts: a channel whose connection was closed forgets it, but late acks and restores
still ask for the parameters of that connection: ``'NoneType' object has no attribute
'hostname'``, which the worker takes for a fatal error. The parameters do not change during the
life of a channel, so the last answer is still the right one.

When Redis is mute for a moment: an ack that gets no answer leaves its message counted as being
worked on. After as many as the worker may prefetch it waits for messages, connected and alive,
and takes none for ever.

When somebody writes what is no message into a queue: it is popped, cannot be read, and ends the
worker. Here it is wrapped as a message, so that the consumer keeps it like any other bad one.

For each ack, and for each message that is sent, kombu makes a new client of the same pool; making
it takes longer than the command. Here a channel keeps its client as long as the pool.
"""

from __future__ import annotations

from base64 import b64decode
from typing import Any
from uuid import uuid4

import kombu.transport
from kombu.transport import redis as kombu_redis
from kombu.transport import virtual
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps, loads


class QoS(kombu_redis.QoS):
    """Counts a message as done also when Redis did not hear of it. Redis delivers it again when
    its visibility timeout is over."""

    def ack(self, delivery_tag: str) -> None:
        try:
            super().ack(delivery_tag)
        except BaseException:
            virtual.QoS.ack(self, delivery_tag)
            raise

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        try:
            super().reject(delivery_tag, requeue)
        except BaseException:
            virtual.QoS.ack(self, delivery_tag)
            raise


class Channel(kombu_redis.Channel):
    """Answers with its last connection parameters once its connection is gone."""

    QoS = QoS
    _kept: Any = None

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        if self.connection is not None and self.connection.client is not None:
            # Both kinds, because the other one may be asked for only after the loss.
            self._remembered = {
                kind: super(Channel, self)._connparams(asynchronous=kind)  # type: ignore[misc]
                for kind in (False, True)
            }
        return dict(self._remembered[asynchronous])

    def _create_client(self, asynchronous: bool = False) -> Any:
        if asynchronous:
            return self._new_client(asynchronous)
        if self._kept is None or self._kept.connection_pool is not self.pool:
            self._kept = self._new_client(asynchronous)
        return self._kept

    def _new_client(self, asynchronous: bool) -> Any:
        client = super()._create_client(asynchronous=asynchronous)  # type: ignore[misc]
        client.set_response_callback("BRPOP", self._remember_popped)
        return client

    def _remember_popped(self, response: Any, **options: Any) -> Any:
        self._popped = bytes_to_str(response[1]) if response else None
        return response

    def _brpop_read(self, **options: Any) -> Any:
        self._popped = None
        try:
            return super()._brpop_read(**options)  # type: ignore[misc]
        except Exception:
            if self._popped is None or is_readable(self._popped):
                raise
            # The queue just read was moved to the end of the round.
            queue = self._queue_cycle.items[-1]
            self.connection._deliver(self._popped, queue)
            return True


class Transport(kombu_redis.Transport):
    Channel = Channel

    def _deliver(self, message: Any, queue: str | None) -> None:
        super()._deliver(message if is_message(message) else wrapped(message, queue), queue)


def is_readable(text: str) -> bool:
    """Whether JSON and back works: no nonsense, nothing nested beyond what Python recurses."""
    try:
        dumps([[loads(text)]])
        return True
    except Exception:  # the hooks for dates and the like raise anything
        return False


def is_message(item: Any) -> bool:
    """Whether kombu can read the envelope; what is inside is the consumer's business."""
    try:
        properties, headers = item["properties"], item.get("headers")
        delivery = properties["delivery_info"]
        names = (properties["delivery_tag"], delivery["exchange"], delivery["routing_key"])
        for name in names:
            name.encode()  # a key in Redis
        return (
            bool(names[0])
            and isinstance(headers, dict | None)
            and is_decodable(item.get("body"), properties.get("body_encoding"))
        )
    except (KeyError, TypeError, IndexError, AttributeError, ValueError):
        return False


def is_decodable(body: Any, encoding: Any) -> bool:
    if not body:
        return True
    if encoding == "base64":
        b64decode(body)
    return isinstance(body, str) and encoding in (None, "", "utf-8", "base64")


def wrapped(item: Any, queue: str | None) -> dict[str, Any]:
    """A message that no consumer takes for a task, with the item as its body."""
    return {
        "body": item if isinstance(item, str) else repr(item),
        "content-type": "application/octet-stream",
        "content-encoding": "utf-8",
        "headers": {},
        "properties": {
            "delivery_tag": str(uuid4()),
            "delivery_info": {"exchange": "", "routing_key": queue},
        },
    }


def install() -> None:
    """Every ``redis://`` and ``rediss://`` connection made from now on is a cured one.

    The schemes keep their names: with ``broker_transport`` set to a class, kombu no longer
    sees that ``rediss`` means TLS, and it forgets the class when it fails over.
    """
    for scheme in ("redis", "rediss"):
        kombu.transport.TRANSPORT_ALIASES[scheme] = f"{__name__}:Transport"
        # Somebody may have connected before.
        kombu.transport._transport_cache.pop(scheme, None)  # type: ignore[attr-defined]
