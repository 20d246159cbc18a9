"""A downstream that bears 20 calls at once, a rolling deploy beside it, then kills."""

from random import Random

from devtools.drill.books import at_once, share_of_time_at
from devtools.drill.drill import Drill, order
from devtools.drill.scene import Scene
from devtools.drill.traffic import Order
from devtools.drill.witness import books_of

LIMIT = 20
NEARLY = 18
# Of the time while there is work: between the end of a run and the next one lie two round trips.
MOST_OF_THE_TIME = 0.9


def orders(random: Random, number: int) -> Order:
    return order("bare", number, seconds=round(random.uniform(0.5, 1.5), 3))


def rehearse(scene: Scene) -> None:
    """Quiet first, then two releases overlap, then workers are killed at random."""
    third = len(scene.orders) // 3
    with scene.traffic(scene.orders[:third]):
        pass
    scene.wait_until(lambda: scene.unfinished() <= LIMIT, "the first third is done", within_s=300)
    promise_use(scene)
    with scene.traffic(scene.orders[third : 2 * third]):
        for worker in scene.workers:
            scene.start_worker(RELEASE="next")
            scene.stop(worker)
    with scene.traffic(scene.orders[2 * third :]):
        for _ in scene.moments(every_s=5):
            scene.kill(scene.any_worker())
            scene.start_worker()
    scene.wait_until_all_ended()
    most = max(number for _, number in at_once(books_of(scene.witness_url).runs))
    scene.promise(f"never more than {LIMIT} calls at once", most <= LIMIT, f"at most {most}")


def promise_use(scene: Scene) -> None:
    runs = books_of(scene.witness_url).runs
    steps = at_once(runs)
    full = next((at for at, number in steps if number >= NEARLY), 0.0)
    last_began = max(run.began for run in runs)
    busy = [(at, number) for at, number in steps if full <= at <= last_began]
    share = share_of_time_at(busy, NEARLY)
    scene.promise(
        f"while there is work, {NEARLY} or more calls go on",
        share >= MOST_OF_THE_TIME,
        f"{share:.1%} of the time",
    )


DRILL = Drill(
    "limit",
    breaks="two releases overlap, then SIGKILL for workers, before a downstream with 20 places",
    expects="it never sees a 21st call, and its places are used while there is work",
    rehearse=rehearse,
    orders=orders,
    workers=4,
    relays=2,
    per_s=40.0,
    drain_s=5,
    environment={"DRILL_LIMIT": str(LIMIT), "DRILL_PROCESSES": "5"},
)
