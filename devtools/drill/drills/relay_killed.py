"""Two relays are killed: before they mark jobs, between mark and publish, after it, anywhere."""

import threading

from devtools.drill.drill import Drill
from devtools.drill.scene import QUEUE, Scene
from devtools.drill.tap import messages_to
from tasks.topology import Queue

REACHED_WITHIN_S = 10.0
WAITS_FOR_LOCK = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
TAKE_LOCK = "SELECT pg_advisory_lock(hashtextextended(%s, 1))"


def rehearse(scene: Scene) -> None:
    ways = (before_mark, after_mark, after_publish, anywhere)
    with scene.traffic():
        for number in scene.moments(every_s=2.5):
            ways[(number - 1) % len(ways)](scene)
            while len(scene.relays) < scene.drill.relays:
                scene.start_relay()
    scene.wait_until_all_ended()
    scene.promise_no_second_run()


def before_mark(scene: Scene) -> None:
    """We hold the lock under which a relay decides: it has looked, and marked nothing."""
    with scene.stack.connect() as connection:
        connection.execute(TAKE_LOCK, [Queue(QUEUE).lock_name])

        def one_waits() -> bool:
            row = connection.execute(WAITS_FOR_LOCK).fetchone()
            return row is not None and int(str(row[0])) > 0

        if scene.reaches(one_waits, within_s=REACHED_WITHIN_S):
            kill_all(scene)


def after_mark(scene: Scene) -> None:
    """The broker is mute: what is marked now cannot be published."""
    marked = scene.count_jobs("dispatch_no > 0")
    scene.broker.black_hole()
    if scene.reaches(
        lambda: scene.count_jobs("dispatch_no > 0") > marked, within_s=REACHED_WITHIN_S
    ):
        kill_all(scene)
    scene.broker.reset()
    scene.broker.pass_on()


def after_publish(scene: Scene) -> None:
    """Redis has just got a message."""
    assert scene.stack.redis is not None
    stopping = threading.Event()
    timer = threading.Timer(REACHED_WITHIN_S, stopping.set)
    timer.start()
    for _ in messages_to(QUEUE, scene.stack.redis.url, stopping):
        kill_all(scene)
        break
    timer.cancel()


def anywhere(scene: Scene) -> None:
    """One of them, in whatever it does; the other goes on."""
    scene.kill(scene.random.choice(scene.relays))


def kill_all(scene: Scene) -> None:
    for relay in scene.relays:
        scene.kill(relay)


DRILL = Drill(
    "relay-killed",
    breaks="SIGKILL for two relays: before the mark, after it, after the publish, anywhere",
    expects="what was marked and not sent is sent again, and nothing runs twice",
    rehearse=rehearse,
    relays=2,
    broker_is_proxied=True,
)
