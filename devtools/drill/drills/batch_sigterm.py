"""Workers are replaced in the middle of their batches."""

from devtools.drill.drill import Drill
from devtools.drill.piling import BATCH, PER_S, pile_up, promise_batches, short
from devtools.drill.scene import Scene
from tasks.topology import STOP_OVERHEAD_S

DRAIN_S = 5
# Few are left then: the last workers may end them.
ENOUGH = 20


def rehearse(scene: Scene) -> None:
    pile_up(scene)
    while scene.unfinished() > ENOUGH:
        leaving = scene.any_worker()
        scene.start_worker()
        scene.pause(scene.random.uniform(0.2, 1.0))
        scene.stop(leaving)
    scene.wait_until_all_ended()
    promise_batches(scene)
    scene.promise_stops_in_time(DRAIN_S + STOP_OVERHEAD_S)
    scene.promise_no_second_run()
    crashes = scene.count_jobs("crashes > 0")
    scene.promise("a drain costs no crash", not crashes, f"{crashes} jobs have one")


DRILL = Drill(
    "batch-sigterm",
    breaks="SIGTERM for one worker after the other, in the middle of batches of 50",
    expects="what runs ends, what has not started goes back at no cost, and nothing runs twice",
    orders=short,
    rehearse=rehearse,
    drain_s=DRAIN_S,
    per_s=PER_S,
    environment=BATCH,
)
