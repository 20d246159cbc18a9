"""Every connection to the broker is reset, while the broker lives and jobs run."""

from devtools.drill.drill import Drill
from devtools.drill.scene import Scene


def rehearse(scene: Scene) -> None:
    with scene.traffic():
        for _ in scene.moments(every_s=1.5):
            scene.broker.reset()
    scene.wait_until_all_ended()
    scene.promise_no_second_run()


DRILL = Drill(
    "connection-drop",
    breaks="all connections to Redis are reset every second or two while jobs run",
    expects="running jobs go on, and what Redis delivers again is not run again",
    rehearse=rehearse,
    broker_is_proxied=True,
)
