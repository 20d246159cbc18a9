"""How a job is noticed: a byte in a file, which costs next to nothing, and lists of moments in
Redis."""

from __future__ import annotations

import os
import time

import redis

from devtools.benched.redis_keys import PICKUPS, RELEASED, STARTS

HELD_AT_MOST_S = 120.0
LOOK_EVERY_S = 0.1

_redis = redis.Redis.from_url(os.environ["BROKER_URL"])
_tally = os.open(os.environ["BENCH_TALLY"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def count() -> None:
    os.write(_tally, b".")


def record_pickup(sent_at: float) -> None:
    _redis.rpush(PICKUPS, time.time() - sent_at)


def record_start() -> None:
    _redis.rpush(STARTS, time.time())


def wait_for_release() -> None:
    ends_at = time.monotonic() + HELD_AT_MOST_S
    while not _redis.exists(RELEASED) and time.monotonic() < ends_at:
        time.sleep(LOOK_EVERY_S)
