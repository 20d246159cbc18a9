"""Workers and single processes are killed in the middle of their batches."""

from random import Random

from devtools.drill.drill import Drill, order
from devtools.drill.piling import BATCH, NEIGHBOURS, PER_S, pile_up, promise_batches
from devtools.drill.scene import Scene
from devtools.drill.traffic import Order
from devtools.drill.witness import books_of

# What has ended is written together: so long before its death a process may have ended runs of
# which the ledger does not know. 50 ms, and what a commit takes on a busy machine.
UNWRITTEN_S = 0.5
KILLS = 16
WORKER_EACH = 4  # of the kills; the others end one process
RUNS_AGAIN_WITHIN_S = 60.0


def orders(random: Random, number: int) -> Order:
    task = "stepped" if number // NEIGHBOURS % 2 else "bare"
    return order(task, number, seconds=round(random.uniform(0.005, 0.04), 3))


def rehearse(scene: Scene) -> None:
    pile_up(scene)
    for number in range(KILLS):
        scene.wait_until(
            lambda: is_running(scene) or not scene.unfinished(),
            "somebody runs jobs",
            within_s=RUNS_AGAIN_WITHIN_S,
        )
        scene.pause(scene.random.uniform(0.05, 0.2))
        if number % WORKER_EACH == WORKER_EACH - 1:
            scene.kill(scene.busy_worker())
            scene.start_worker()
        else:
            scene.kill_pool_child(scene.busy_worker())
    scene.wait_until_all_ended()
    promise_batches(scene)
    scene.promise_next_run_within(3 * scene.lease_s)
    failed = scene.count_jobs("state = 'failed'")
    together = scene.count_jobs("crashes_in_batch > 0")
    alone = scene.count_jobs("crashes > crashes_in_batch")
    scene.promise(
        "no job is given up for what killed its neighbours",
        not failed,
        f"{failed} were; {together} died with others, {alone} alone",
    )


def is_running(scene: Scene) -> bool:
    return any(not run.ended for run in books_of(scene.witness_url).runs)


DRILL = Drill(
    "batch-sigkill",
    breaks="SIGKILL for workers and for single processes, in the middle of batches of 50",
    expects="what was settled stays settled, the others run again, and none is taken for poison",
    orders=orders,
    rehearse=rehearse,
    per_s=PER_S,
    unwritten_s=UNWRITTEN_S,
    environment=BATCH,
)
