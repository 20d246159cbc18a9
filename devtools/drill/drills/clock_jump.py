"""The clock of single worker machines jumps by an hour, forwards and back, while jobs run."""

import struct
from pathlib import Path
from random import Random

from devtools.child import ROOT
from devtools.drill.drill import Drill, order, ordinary
from devtools.drill.scene import Scene
from devtools.drill.traffic import Order

HOUR_S = 3600.0
LONG_EACH = 40
SHIFTED_CLOCK = ROOT / "devtools" / "drilled" / "shifted_clock"


def orders(random: Random, number: int) -> Order:
    """Some runs are longer than a lease, so that theirs must be renewed."""
    if number % LONG_EACH == LONG_EACH // 2:
        return order(random.choice(["bare", "stepped"]), number, seconds=random.uniform(6, 10))
    return ordinary(random, number)


def rehearse(scene: Scene) -> None:
    with scene.traffic():
        for _ in scene.moments(every_s=1.5):
            worker = scene.random.choice(scene.workers)
            set_clock(clock_of(worker.name.removeprefix("worker-"), scene.directory),
                      scene.random.choice([-HOUR_S, 0.0, HOUR_S]))  # fmt: skip
    scene.wait_until_all_ended()
    scene.promise_no_second_run()


def clock_of(worker: str, directory: Path) -> Path:
    return directory / f"{worker}.clock"


def set_clock(clock: Path, shift_s: float) -> None:
    """In place: the processes of the worker have it mapped."""
    with clock.open("r+b") as file:
        file.write(struct.pack("d", shift_s))


def of_worker(name: str, directory: Path) -> dict[str, str]:
    """A module that Python imports before any other shifts what the worker takes for the time."""
    clock = clock_of(name, directory)
    clock.write_bytes(struct.pack("d", 0.0))
    return {"PYTHONPATH": str(SHIFTED_CLOCK), "SHIFTED_CLOCK": str(clock)}


DRILL = Drill(
    "clock-jump",
    breaks="the clock of one worker machine after the other jumps by an hour, back and forth",
    expects="nothing is taken for lost or run twice: the clock of the database decides",
    orders=orders,
    rehearse=rehearse,
    of_worker=of_worker,
)
