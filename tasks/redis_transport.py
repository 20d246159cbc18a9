"""The Redis transport of kombu, cured of a bug that kills workers when Redis restarts.

A channel whose connection was closed forgets it, but late acks and restores still ask for the
parameters of that connection: ``'NoneType' object has no attribute 'hostname'``, which the
worker takes for a fatal error. The parameters do not change during the life of a channel, so
the last answer is still the right one.
"""

from __future__ import annotations

from typing import Any

import kombu.transport
from kombu.transport import redis as kombu_redis


class Channel(kombu_redis.Channel):
    """Answers with its last connection parameters once its connection is gone."""

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        if self.connection is not None and self.connection.client is not None:
            # Both kinds, because the other one may be asked for only after the loss.
            self._remembered = {
                kind: super(Channel, self)._connparams(asynchronous=kind)  # type: ignore[misc]
                for kind in (False, True)
            }
        return dict(self._remembered[asynchronous])


class Transport(kombu_redis.Transport):
    Channel = Channel


def install() -> None:
    """Every ``redis://`` and ``rediss://`` connection made from now on is a cured one.

    The schemes keep their names: with ``broker_transport`` set to a class, kombu no longer
    sees that ``rediss`` means TLS, and it forgets the class when it fails over.
    """
    for scheme in ("redis", "rediss"):
        kombu.transport.TRANSPORT_ALIASES[scheme] = f"{__name__}:Transport"
        # Somebody may have connected before.
        kombu.transport._transport_cache.pop(scheme, None)  # type: ignore[attr-defined]
