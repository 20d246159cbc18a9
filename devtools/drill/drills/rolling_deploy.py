"""A deploy under traffic: the web server and the relays first, then the workers, one by one.

The next release brings a task, which is called before any worker knows it, and lacks another,
of which jobs still wait.
"""

from collections.abc import Sequence

from devtools.drill.drill import Drill, order
from devtools.drill.scene import Scene
from devtools.drill.traffic import Order
from tasks.topology import STOP_OVERHEAD_S

BEFORE = {"DJANGO_SETTINGS_MODULE": "devtools.drilled.before", "RELEASE": "before"}
AFTER = {"DJANGO_SETTINGS_MODULE": "devtools.drilled.after", "RELEASE": "after"}
SPECIAL_EACH = 8
# Some jobs of the old task are due during the deploy, some when it is over.
LEAVING_IN_S = (4.0, 45.0)
STILL_WAITS = "task LIKE '%%leaving' AND state = 'queued' AND run_at < clock_timestamp()"


def rehearse(scene: Scene) -> None:
    third = len(scene.orders) // 3
    with scene.traffic(mixed(scene, "leaving", scene.orders[:third])):
        pass
    scene.stack.env.update(AFTER)
    with scene.traffic(scene.orders[third : 2 * third]):
        scene.restart_web()
        for relay in scene.relays:
            scene.start_relay()
            scene.stop(relay)
    with scene.traffic(mixed(scene, "arriving", scene.orders[2 * third :])):
        for worker in scene.workers:
            scene.start_worker()
            scene.stop(worker)
    scene.promise_stops_in_time(scene.drill.drain_s + STOP_OVERHEAD_S)
    removed_tasks_wait(scene)
    scene.start_worker(**BEFORE)
    scene.wait_until_all_ended()
    scene.promise_no_second_run()


def mixed(scene: Scene, task: str, orders: Sequence[Order]) -> list[Order]:
    """Some of these become jobs of a task that only one of the releases has."""

    def special(number: int) -> Order:
        after_s = scene.random.uniform(*LEAVING_IN_S) if task == "leaving" else 0.0
        return order(task, number, module=f"devtools.drilled.{task}.tasks", after_s=after_s)

    return [
        one if number % SPECIAL_EACH else special(int(one.key.removeprefix("drill-")))
        for number, one in enumerate(orders)
    ]


def removed_tasks_wait(scene: Scene) -> None:
    scene.wait_until(
        lambda: scene.count_jobs(STILL_WAITS) > 0, "a job of the removed task is due", within_s=60
    )
    scene.pause(3)  # long enough to fail, or to be thrown away
    waiting, failed = scene.count_jobs(STILL_WAITS), scene.count_jobs("state = 'failed'")
    scene.promise(
        "jobs of a removed task wait until a worker knows it",
        waiting > 0 and not failed,
        f"{waiting} waited, {failed} failed",
    )


DRILL = Drill(
    "rolling-deploy",
    breaks="web, relays and workers are replaced under traffic by a release with other tasks",
    expects="nothing is lost and nothing fails; jobs wait for a worker that knows their task",
    rehearse=rehearse,
    environment=BEFORE,
)
