"""Every message is delivered again, one to three times, at any later moment."""

import heapq
import json
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import redis

from devtools.drill.drill import Drill
from devtools.drill.scene import QUEUE, Scene
from devtools.drill.tap import messages_to

COPIES = (1, 3)
LATER_S = (0.0, 8.0)


def rehearse(scene: Scene) -> None:
    with resending(scene.stack.env["BROKER_URL"], scene.random) as resent:
        with scene.traffic():
            pass
        scene.wait_until_all_ended()
        scene.pause(LATER_S[1])  # the last copies arrive when their jobs have ended
    scene.promise("messages came again", bool(resent), f"{len(resent)} copies")
    scene.promise_no_second_run()


@contextmanager
def resending(url: str, random: Random) -> Iterator[list[str]]:
    """What was sent again until now."""
    stopping, resent = threading.Event(), list[str]()
    waiting: list[tuple[float, str]] = []

    def collect() -> None:
        for message in messages_to(QUEUE, url, stopping):
            if message in resent:
                continue
            for _ in range(random.randint(*COPIES)):
                copy = message if random.random() < 0.5 else under_another_tag(message)
                heapq.heappush(waiting, (time.monotonic() + random.uniform(*LATER_S), copy))

    def send() -> None:
        with redis.Redis.from_url(url) as broker:
            while not stopping.wait(0.02):
                while waiting and waiting[0][0] <= time.monotonic():
                    message = heapq.heappop(waiting)[1]
                    resent.append(message)
                    broker.lpush(QUEUE, message)

    threads = [threading.Thread(target=loop, daemon=True) for loop in (collect, send)]
    for thread in threads:
        thread.start()
    try:
        yield resent
    finally:
        stopping.set()
        for thread in threads:
            thread.join(5)


def under_another_tag(message: str) -> str:
    """As if somebody else had published the same."""
    copy = json.loads(message)
    copy["properties"]["delivery_tag"] = str(uuid.uuid4())
    return json.dumps(copy)


DRILL = Drill(
    "duplicate-delivery",
    breaks="every message is delivered one to three times more, up to 8 s later",
    expects="no job runs a second time",
    rehearse=rehearse,
)
