"""Messages vanish: taken from the list of the queue, as by a worker that died on its way to the
bookkeeping, or from the bookkeeping itself."""

import redis

from devtools.drill.drill import Drill
from devtools.drill.scene import QUEUE, Scene


def rehearse(scene: Scene) -> None:
    lost = forgotten = 0
    with redis.Redis.from_url(scene.stack.env["BROKER_URL"]) as broker, scene.traffic():
        for number in scene.moments(every_s=0.1):
            lost += broker.rpop(QUEUE) is not None
            if number % 10 == 0:
                forgotten += forget_one(scene, broker)
    scene.wait_until_all_ended()
    scene.promise("messages were lost", lost > 0, f"{lost} before, {forgotten} after delivery")
    scene.promise_no_second_run()


def forget_one(scene: Scene, broker: redis.Redis) -> int:
    """One message that a worker has, and has not acknowledged."""
    tags = broker.hkeys("unacked")
    if not tags:
        return 0
    tag = scene.random.choice(tags)
    broker.zrem("unacked_index", tag)
    return int(broker.hdel("unacked", tag))


DRILL = Drill(
    "redis-lost-message",
    breaks="messages vanish from Redis at random, before and after delivery",
    expects="each is sent again after two leases, and nothing runs twice",
    rehearse=rehearse,
)
