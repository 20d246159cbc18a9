"""Workers and single processes are killed in the middle of their batches."""

from devtools.drill.drill import Drill
from devtools.drill.piling import BATCH, PER_S, pile_up, promise_batches, short
from devtools.drill.scene import Scene

# What has ended is written together: so long before its death a process may have ended runs of
# which the ledger does not know. 50 ms, and what a commit takes on a busy machine.
UNWRITTEN_S = 0.5
# Few are left then: the last workers may end them.
ENOUGH = 20


def rehearse(scene: Scene) -> None:
    pile_up(scene)
    while scene.unfinished() > ENOUGH:
        scene.pause(scene.random.uniform(0.2, 0.6))
        if scene.random.random() < 0.5:
            scene.kill_pool_child(scene.busy_worker())
        else:
            scene.kill(scene.busy_worker())
            scene.start_worker()
    scene.wait_until_all_ended()
    promise_batches(scene)
    scene.promise_next_run_within(3 * scene.lease_s)
    counted = scene.count_jobs("crashes_in_batch < crashes AND NOT batched")
    failed = scene.count_jobs("state = 'failed'")
    scene.promise(
        "no job is given up for what killed its neighbours",
        not failed,
        f"{failed} were, {counted} died once more when they were alone",
    )


DRILL = Drill(
    "batch-sigkill",
    breaks="SIGKILL for workers and for single processes, in the middle of batches of 50",
    expects="what was settled stays settled, the others run again, and none is taken for poison",
    orders=short,
    rehearse=rehearse,
    per_s=PER_S,
    unwritten_s=UNWRITTEN_S,
    environment=BATCH,
)
