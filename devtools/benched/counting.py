"""How a no-op job is noticed: a counter and a list of pickup times in Redis."""

from __future__ import annotations

import os
import time

import redis

DONE = "bench:done"
PICKUPS = "bench:pickups"

_redis = redis.Redis.from_url(os.environ["BROKER_URL"])


def count() -> None:
    _redis.incr(DONE)


def record_pickup(sent_at: float) -> None:
    _redis.rpush(PICKUPS, time.time() - sent_at)
