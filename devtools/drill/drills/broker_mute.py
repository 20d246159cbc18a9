"""The broker accepts every connection and says nothing."""

from devtools.drill.drill import Drill
from devtools.drill.scene import Scene


def rehearse(scene: Scene) -> None:
    with scene.traffic():
        for _ in scene.moments(every_s=6):
            scene.broker.black_hole()
            scene.pause(scene.random.uniform(2, 8))
            scene.broker.pass_on()
    scene.wait_until_all_ended()
    scene.promise_prompt_answers()
    scene.promise_no_second_run()


DRILL = Drill(
    "broker-mute",
    breaks="Redis accepts connections and says nothing for some seconds, again and again",
    expects="jobs are accepted as fast as ever, and all run when it speaks again",
    rehearse=rehearse,
    broker_is_proxied=True,
)
