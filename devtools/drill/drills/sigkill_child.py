"""Single processes of the workers' pools are killed; their parents notice."""

from devtools.drill.drill import Drill
from devtools.drill.scene import Scene

NOTICED_WITHIN_S = 5.0


def rehearse(scene: Scene) -> None:
    with scene.traffic():
        for _ in scene.moments(every_s=0.8):
            scene.kill_pool_child(scene.any_worker())
    scene.wait_until_all_ended()
    scene.promise_next_run_within(NOTICED_WITHIN_S)


DRILL = Drill(
    "sigkill-child",
    breaks="SIGKILL for one process of a pool, about every second",
    expects="its parent notices at once and the job runs again, the other runs go on",
    rehearse=rehearse,
    lease_s=15.0,  # it must not be the lease that helps
)
