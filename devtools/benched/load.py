"""Makes jobs in a process of its own and prints how long that took, as JSON.

python -m devtools.benched.load plain one-by-one 1000
python -m devtools.benched.load celeriac bulk 20000
python -m devtools.benched.load celeriac trickle 100 20.0
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

WAITS_S = 0.5  # of the asynchronous jobs that wait


class System(Protocol):
    def one(self) -> None: ...
    def stamped(self, sent_at: float) -> None: ...
    def bulk(self, number: int) -> None: ...
    def batched(self, number: int) -> None: ...


class Plain:
    def __init__(self) -> None:
        from devtools.benched import plain

        self.app, self.tasks = plain.app, plain

    def one(self) -> None:
        self.tasks.noop.apply_async()

    def stamped(self, sent_at: float) -> None:
        self.tasks.stamped.apply_async((sent_at,))

    def bulk(self, number: int) -> None:
        """The best that Celery offers: one producer for all."""
        with self.app.producer_pool.acquire(block=True) as producer:
            for _ in range(number):
                self.tasks.noop.apply_async(producer=producer)

    def batched(self, number: int) -> None:
        self.bulk(number)


class Celeriac:
    def __init__(self) -> None:
        import django

        django.setup()
        from devtools.benched import tasks
        from tasks.enqueue import enqueue, enqueue_many

        self.tasks, self.enqueue, self.enqueue_many = tasks, enqueue, enqueue_many

    def one(self) -> None:
        self.enqueue(self.tasks.noop, {})

    def stamped(self, sent_at: float) -> None:
        self.enqueue(self.tasks.stamped, {"sent_at": sent_at})

    def bulk(self, number: int) -> None:
        self.enqueue_many(self.tasks.noop, ({} for _ in range(number)))

    def batched(self, number: int) -> None:
        self.enqueue_many(self.tasks.batched, ({} for _ in range(number)))

    def held(self, number: int) -> None:
        self.enqueue_many(self.tasks.held, [{}] * number)

    def short(self, number: int) -> None:
        self.enqueue_many(self.tasks.short, ({} for _ in range(number)))

    def waits(self, number: int) -> None:
        self.enqueue_many(self.tasks.waits, ({"seconds": WAITS_S} for _ in range(number)))


def one_by_one(system: System, number: int) -> None:
    for _ in range(number):
        system.one()


def bulk(system: System, number: int) -> None:
    system.bulk(number)


def batched(system: System, number: int) -> None:
    system.batched(number)


def trickle(system: System, number: int, per_s: float) -> None:
    """So many a second, on the beat whatever the last one took."""
    began = time.monotonic()
    for n in range(number):
        time.sleep(max(0.0, began + n / per_s - time.monotonic()))
        system.stamped(time.time())


SYSTEMS: dict[str, Callable[[], System]] = {"plain": Plain, "celeriac": Celeriac}
WAYS: dict[str, Callable[..., None]] = {
    "one-by-one": one_by_one, "bulk": bulk, "batched": batched, "trickle": trickle,
    "held": Celeriac.held, "short": Celeriac.short, "waits": Celeriac.waits,
}  # fmt: skip
# Those that measure the calls: connections are made before the clock runs.
WARMED = ("one-by-one", "bulk", "batched", "trickle")


def main(argv: list[str]) -> None:
    name, way, number, *rate = argv
    system: Any = SYSTEMS[name]()
    if way in WARMED:
        system.one()
    began, began_cpu = time.perf_counter(), time.process_time()
    WAYS[way](system, int(number), *map(float, rate))
    taken = {"seconds": time.perf_counter() - began, "cpu_s": time.process_time() - began_cpu}
    print(json.dumps(taken))


if __name__ == "__main__":
    main(sys.argv[1:])
