"""One job in a hundred kills the process that runs it, every time."""

from random import Random

from devtools.drill.books import runs_by_job
from devtools.drill.drill import Drill, order, ordinary
from devtools.drill.scene import Scene
from devtools.drill.traffic import Order
from devtools.drill.witness import books_of

POISONOUS_EACH = 100
MAX_CRASHES = 3


def orders(random: Random, number: int) -> Order:
    if number % POISONOUS_EACH == POISONOUS_EACH // 2:
        return order("poisonous", number, expects="failed (poison)")
    return ordinary(random, number)


def rehearse(scene: Scene) -> None:
    with scene.traffic():
        pass
    scene.wait_until_all_ended()
    runs = runs_by_job(books_of(scene.witness_url).runs).values()
    poisonous = [len(of_job) for of_job in runs if of_job[0].task.endswith("poisonous")]
    scene.promise(
        f"a poisonous job runs {MAX_CRASHES} times",
        set(poisonous) == {MAX_CRASHES},
        f"{len(poisonous)} did, at most {max(poisonous, default=0)} times",
    )


DRILL = Drill(
    "poison",
    breaks="1 job in 100 kills its process whenever it runs",
    expects="it is a dead letter after 3 crashes, and the others keep flowing",
    orders=orders,
    rehearse=rehearse,
)
