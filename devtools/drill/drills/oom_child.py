"""Some jobs eat memory until the kernel kills their process."""

from random import Random

from devtools.drill.drill import Drill, order, ordinary
from devtools.drill.memory import limited_memory
from devtools.drill.scene import Scene
from devtools.drill.traffic import Order

HUNGRY_EACH = 50
# Of a worker with its two children; about three times what it needs.
LIMIT_BYTES = 600 * 1024 * 1024
NOTICED_WITHIN_S = 5.0


def orders(random: Random, number: int) -> Order:
    if number % HUNGRY_EACH == HUNGRY_EACH // 2:
        return order("hungry", number)
    return ordinary(random, number)


def rehearse(scene: Scene) -> None:
    with limited_memory(scene.workers, LIMIT_BYTES) as who_kills:
        scene.notes.append(who_kills)
        with scene.traffic():
            pass
        scene.wait_until_all_ended()
        scene.promise_next_run_within(NOTICED_WITHIN_S)


DRILL = Drill(
    "oom-child",
    breaks="1 job in 50 eats memory until its process is killed for it",
    expects="only that run ends; it runs again, and the worker goes on",
    orders=orders,
    rehearse=rehearse,
    lease_s=15.0,
)
