"""One job in a hundred kills the process that runs it, with all that travels beside it."""

from random import Random

from devtools.drill.books import runs_by_job
from devtools.drill.drill import Drill, order
from devtools.drill.piling import BATCH, PER_S, pile_up, promise_batches
from devtools.drill.scene import Scene
from devtools.drill.traffic import Order
from devtools.drill.witness import books_of

POISONOUS_EACH = 100
MAX_CRASHES = 3


def kills(number: int) -> bool:
    return number % POISONOUS_EACH == POISONOUS_EACH // 2


def orders(random: Random, number: int) -> Order:
    return order(
        "sometimes_poisonous",
        number,
        expects="failed (poison)" if kills(number) else "succeeded",
        seconds=round(random.uniform(0.002, 0.02), 3),
        kills=kills(number),
    )


def rehearse(scene: Scene) -> None:
    pile_up(scene)
    scene.wait_until_all_ended()
    promise_batches(scene)
    ids = {answer.job_id: kills(int(answer.order.key.split("-")[1])) for answer in scene.answers}
    runs = runs_by_job(books_of(scene.witness_url).runs)
    poisonous = [len(runs.get(job_id, ())) for job_id, kills_it in ids.items() if kills_it]
    others = [len(runs.get(job_id, ())) for job_id, kills_it in ids.items() if not kills_it]
    scene.promise(
        f"a poisonous job runs {MAX_CRASHES} times alone, and at most once with others before",
        set(poisonous) <= {MAX_CRASHES, MAX_CRASHES + 1},
        f"{len(poisonous)} did, {sum(n > MAX_CRASHES for n in poisonous)} of them with others",
    )
    again = sum(n > 1 for n in others)
    crashes = scene.count_jobs("crashes > 0 AND state = 'succeeded'")
    scene.promise(
        "their neighbours run once, and have no crash",
        not again and not crashes,
        f"{again} ran again, {crashes} have one",
    )


DRILL = Drill(
    "batch-poison",
    breaks="1 job in 100 kills its process whenever it runs, in batches of 50",
    expects="it is a dead letter after 3 crashes alone, and its neighbours do not notice",
    orders=orders,
    rehearse=rehearse,
    per_s=PER_S,
    environment=BATCH,
)
