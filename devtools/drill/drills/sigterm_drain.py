"""Workers are replaced in the middle of long jobs, with a drain that is shorter than those."""

from random import Random

from devtools.drill.drill import Drill, order, ordinary
from devtools.drill.scene import Scene
from devtools.drill.traffic import Order
from devtools.drill.witness import books_of
from tasks.topology import STOP_OVERHEAD_S

LONG_EACH = 30
DRAIN_S = 2
YOUNG_S = 1.0


def orders(random: Random, number: int) -> Order:
    if number % LONG_EACH == 0:
        return order("checkpointed", number, parts=20, seconds=random.uniform(5, 7))
    return ordinary(random, number)


def rehearse(scene: Scene) -> None:
    with scene.traffic():
        for _ in scene.moments(every_s=1):
            # Only a run that has just begun outlasts the drain for sure.
            leaving = scene.worker_that_has_begun("checkpointed", ago_s=YOUNG_S)
            if leaving is not None:
                scene.start_worker()
                scene.stop(leaving)
    scene.wait_until_all_ended()
    scene.promise_stops_in_time(DRAIN_S + STOP_OVERHEAD_S)
    crashes = scene.count_jobs("crashes > 0")
    scene.promise("a drain costs no crash", not crashes, f"{crashes} jobs have one")
    books = books_of(scene.witness_url)
    interrupted = sum(run.how in ("Draining", "SystemExit") for run in books.runs)
    resumed = sum(run.resumed for run in books.runs)
    scene.promise(
        "what was given back goes on from its checkpoint",
        0 < interrupted <= resumed,
        f"{interrupted} runs were given back, {resumed} went on",
    )


DRILL = Drill(
    "sigterm-drain",
    breaks="SIGTERM for one worker after the other, with jobs that outlast the drain",
    expects="each is gone in time; what it did not end goes on elsewhere from its checkpoint",
    orders=orders,
    rehearse=rehearse,
    drain_s=DRAIN_S,
)
