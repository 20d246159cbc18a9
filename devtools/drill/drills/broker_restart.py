"""Redis is killed, comes back empty after a while, and is killed again."""

from devtools.drill.drill import Drill
from devtools.drill.scene import Scene


def rehearse(scene: Scene) -> None:
    redis = scene.stack.redis
    assert redis is not None
    with scene.traffic():
        for _ in scene.moments(every_s=6):
            redis.kill()
            scene.pause(scene.random.uniform(0.5, 3))
            redis.start()
    scene.wait_until_all_ended()
    scene.promise_prompt_answers()
    scene.promise_no_second_run()


DRILL = Drill(
    "broker-restart",
    breaks="SIGKILL for Redis every few seconds; it comes back without its messages",
    expects="jobs are accepted all the time, and all run when it is back",
    rehearse=rehearse,
)
