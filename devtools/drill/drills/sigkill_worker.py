"""A whole worker is killed, with everything it runs, and another one takes its place."""

from devtools.drill.drill import Drill
from devtools.drill.scene import Scene


def rehearse(scene: Scene) -> None:
    with scene.traffic():
        for _ in scene.moments(every_s=5):
            scene.kill(scene.any_worker())
            scene.start_worker()
    scene.wait_until_all_ended()
    scene.promise_next_run_within(2 * scene.lease_s)


DRILL = Drill(
    "sigkill-worker",
    breaks="SIGKILL for a whole worker, every few seconds",
    expects="what it ran is run again within two leases, everything ends once",
    rehearse=rehearse,
    lease_s=15.0,  # what a queue has that says nothing
)
