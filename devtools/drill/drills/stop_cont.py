"""A worker is frozen for longer than its lease, and wakes when its jobs run elsewhere.

The one case in which two bodies can overlap: until the frozen one has woken and is ended.
"""

from random import Random

from devtools.drill.drill import Drill, order, ordinary
from devtools.drill.scene import Scene
from devtools.drill.traffic import Order

LONG_EACH = 20


def orders(random: Random, number: int) -> Order:
    """Some runs are long enough to be met."""
    if number % LONG_EACH == LONG_EACH // 2:
        return order(random.choice(["bare", "stepped"]), number, seconds=random.uniform(2, 4))
    return ordinary(random, number)


def rehearse(scene: Scene) -> None:
    with scene.traffic():
        for _ in scene.moments(every_s=4):
            with scene.frozen(scene.busy_worker()):
                scene.pause(scene.lease_s + scene.random.uniform(4.5, 7))
    scene.wait_until_all_ended()


DRILL = Drill(
    "stop-cont",
    breaks="SIGSTOP for a whole worker, SIGCONT when its lease is over",
    expects="its jobs run elsewhere; when it wakes, its runs are ended within 1 s",
    orders=orders,
    rehearse=rehearse,
    lease_s=4.0,
)
