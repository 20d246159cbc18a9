"""A deploy under traffic: check and migrate, web server and relays, then the workers in batches.

The next release brings a task, which is called before any worker knows it, lacks another, of which
jobs still wait, and wants one argument more of a third: of that one old jobs wait and new ones
come. What they call bears only so many calls, while two releases are at it.
"""

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from devtools.child import ROOT
from devtools.drill.books import at_once
from devtools.drill.drill import Drill, order
from devtools.drill.scene import Scene
from devtools.drill.traffic import Order
from devtools.drill.witness import books_of
from tasks.topology import STOP_OVERHEAD_S

BEFORE = {"DJANGO_SETTINGS_MODULE": "devtools.drilled.before", "RELEASE": "before"}
AFTER = {"DJANGO_SETTINGS_MODULE": "devtools.drilled.after", "RELEASE": "after"}
SPECIAL_EACH = 8
# Some jobs of the release before are due during the deploy, some when it is over.
LEAVING_IN_S = (4.0, 45.0)
STILL_WAIT = (
    "(task LIKE '%%leaving' OR task LIKE '%%changed' AND payload->'currency' IS NULL)"
    " AND state = 'queued' AND run_at < clock_timestamp()"
)
WORKERS, BATCH = 4, 2
# Fewer than the slots of one release, so that the limit is what holds them back.
LIMIT = 6
CHECK_WITHIN_S = 60.0


def rehearse(scene: Scene) -> None:
    third = len(scene.orders) // 3
    with scene.traffic(mixed(scene, scene.orders[:third], "leaving")):
        pass
    scene.stack.env.update(AFTER)
    with scene.traffic(scene.orders[third : 2 * third]):
        prepare(scene)
        with scene.step("web server replaced"):
            scene.restart_web()
        with scene.step("relay replaced"):
            for relay in scene.relays:
                scene.start_relay()
                scene.stop(relay)
    with scene.traffic(mixed(scene, scene.orders[2 * third :], "arriving")):
        replace_workers(scene)
    removed_and_changed_tasks_wait(scene)
    with scene.step("jobs of the release before end on a worker of it"):
        scene.start_worker(**BEFORE)
        scene.wait_until_all_ended()
    scene.promise_stops_in_time(scene.drill.drain_s + STOP_OVERHEAD_S)
    scene.promise_no_second_run()
    limit_holds(scene)


def mixed(scene: Scene, orders: Sequence[Order], release: str) -> list[Order]:
    """Some of these become jobs that only one of the releases can run."""

    def special(number: int, task: str) -> Order:
        after_s = scene.random.uniform(*LEAVING_IN_S) if release == "leaving" else 0.0
        if task == "changed":
            more = {"currency": "EUR"} if release == "arriving" else {}
            return order(task, number, module="devtools.drilled", after_s=after_s, **more)
        return order(task, number, module=f"devtools.drilled.{release}.tasks", after_s=after_s)

    kinds = {0: release, SPECIAL_EACH // 2: "changed"}
    return [
        special(int(one.key.removeprefix("drill-")), kinds[place]) if place in kinds else one
        for place, one in ((number % SPECIAL_EACH, one) for number, one in enumerate(orders))
    ]


def prepare(scene: Scene) -> None:
    """With the next release's code, while the one before works. Here the check says no."""
    with scene.step("migrate"):
        scene.stack.manage("migrate", "--no-input")
    with scene.step("rollout_check"):
        done = subprocess.run(
            [sys.executable, "manage.py", "rollout_check"],
            cwd=ROOT, env=scene.stack.env, capture_output=True, text=True,
            timeout=CHECK_WITHIN_S, check=False,
        )  # fmt: skip
    named = [name for name in ("leaving.tasks.leaving", "drilled.changed") if name in done.stdout]
    scene.promise(
        "rollout_check names the removed and the changed task",
        done.returncode == 1 and len(named) == 2,
        f"exit code {done.returncode}, named {' and '.join(named) or 'none'}",
    )


def replace_workers(scene: Scene) -> None:
    """New ones first; the old ones are told to stop when they beat, all of a batch at once."""
    old = scene.workers
    for start in range(0, len(old), BATCH):
        number = start // BATCH + 1
        batch = old[start : start + BATCH]
        with scene.step(f"workers, batch {number}: {len(batch)} started"):
            for _ in batch:
                scene.start_worker()
            scene.stack.wait_for_workers()
        with (
            scene.step(f"workers, batch {number}: {len(batch)} stopped"),
            ThreadPoolExecutor(len(batch)) as pool,
        ):
            list(pool.map(scene.stop, batch))


def removed_and_changed_tasks_wait(scene: Scene) -> None:
    scene.wait_until(
        lambda: scene.count_jobs(STILL_WAIT) > 0, "a job of the release before is due", within_s=60
    )
    scene.pause(3)  # long enough to fail, or to be thrown away
    waiting, failed = scene.count_jobs(STILL_WAIT), scene.count_jobs("state = 'failed'")
    scene.promise(
        "jobs of a removed or changed task wait until a worker knows it",
        waiting > 0 and not failed,
        f"{waiting} waited, {failed} failed",
    )


def limit_holds(scene: Scene) -> None:
    """By the books of the witness, which is the one that is called."""
    runs = books_of(scene.witness_url).runs
    most = max(number for _, number in at_once(runs))
    releases = {run.release for run in runs}
    scene.promise(
        f"two releases together never make more than {LIMIT} calls at once",
        most <= LIMIT and releases >= {"before", "after"},
        f"{most} at most",
    )


DRILL = Drill(
    "rolling-deploy",
    breaks="web, relays and workers are replaced under traffic by a release with other tasks",
    expects="nothing is lost and nothing fails, the limit holds; jobs wait for a worker that knows"
    " their task",
    rehearse=rehearse,
    workers=WORKERS,
    environment={**BEFORE, "DRILL_LIMIT": str(LIMIT)},
)
