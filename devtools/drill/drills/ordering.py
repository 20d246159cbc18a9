"""Jobs of a few ordering keys, with any priority, while workers, children and relays are killed."""

from collections import defaultdict
from random import Random

from devtools.drill.books import began_too_early, runs_by_job
from devtools.drill.drill import Drill, order, ordinary
from devtools.drill.scene import Scene
from devtools.drill.traffic import Answer, Order
from devtools.drill.witness import books_of

KEYS = 20


def orders(random: Random, number: int) -> Order:
    usual = ordinary(random, number)
    options = {"ordering_key": f"key-{random.randrange(KEYS)}", "priority": random.randint(-9, 9)}
    task = usual.task.rpartition(".")[2]
    return order(task, number, options=options, seconds=usual.payload["seconds"])


def rehearse(scene: Scene) -> None:
    ways = (kill_worker, lambda s: s.kill_pool_child(s.any_worker()), kill_relay)
    with scene.traffic():
        for number in scene.moments(every_s=4):
            ways[number % len(ways)](scene)
    scene.wait_until_all_ended()
    promise_order(scene)


def kill_worker(scene: Scene) -> None:
    scene.kill(scene.any_worker())
    scene.start_worker()


def kill_relay(scene: Scene) -> None:
    scene.kill(scene.random.choice(scene.relays))
    scene.start_relay()


def promise_order(scene: Scene) -> None:
    """Who was answered before another one asked is first."""
    of_job = runs_by_job(books_of(scene.witness_url).runs)
    of_key: defaultdict[str, list[Answer]] = defaultdict(list)
    for answer in sorted(scene.answers, key=lambda answer: answer.asked_at):
        of_key[answer.order.options["ordering_key"]].append(answer)
    pairs = [
        (earlier, later)
        for answers in of_key.values()
        for number, later in enumerate(answers)
        for earlier in answers[:number]
        if earlier.answered_at < later.asked_at
    ]
    turned = sum(began_too_early(of_job, a.job_id, b.job_id) for a, b in pairs)
    scene.promise(
        "of an ordering key one job runs after the other",
        not turned,
        f"{turned} of {len(pairs)} pairs did not",
    )


DRILL = Drill(
    "ordering",
    breaks="SIGKILL for workers, children and relays under jobs of 20 ordering keys",
    expects="what was accepted first is done first, whatever its priority",
    rehearse=rehearse,
    orders=orders,
    relays=2,
)
