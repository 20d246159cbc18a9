"""PostgreSQL stops at once, as after a power cut, and comes back: soon, or after a lease."""

from random import Random

from devtools.drill.drill import Drill, order, ordinary
from devtools.drill.scene import Scene
from devtools.drill.traffic import Order

LONG_EACH = 40


def orders(random: Random, number: int) -> Order:
    """Some runs begin before the outage and end in it, or after it."""
    if number % LONG_EACH == LONG_EACH // 2:
        return order(random.choice(["bare", "stepped"]), number, seconds=random.uniform(3, 9))
    return ordinary(random, number)


def rehearse(scene: Scene) -> None:
    postgres = scene.stack.postgres
    assert postgres is not None
    with scene.traffic():
        for number in scene.moments(every_s=7):
            assert postgres.child is not None
            postgres.child.stop()  # SIGQUIT: an immediate shutdown
            scene.pause(1 if number % 2 else scene.lease_s * 1.5)
            postgres.start()
    scene.wait_until_all_ended()
    scene.promise_no_second_run()


DRILL = Drill(
    "database-restart",
    breaks="PostgreSQL stops at once; it is back after a second, or after one and a half leases",
    expects="callers who ask again are served, and nothing that lives is run again",
    orders=orders,
    rehearse=rehearse,
)
