"""An estate on plain Celery moves over under traffic, by the base of its task, and back.

Callers and workers change one after the other, so each meets the other's messages: a worker of
the ledger adopts what plain Celery published, and a plain worker leaves the ledger's jobs alone.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from devtools.child import ROOT
from devtools.drill.drill import Drill
from devtools.drill.scene import Scene
from devtools.drill.traffic import Answer, Order

PLAIN, LEDGER = {"ESTATE": "plain"}, {"ESTATE": "ledger"}
CALLS_WITHIN_S = 300.0


def rehearse(scene: Scene) -> None:
    with calling(scene, PLAIN):
        replace_workers(scene, LEDGER, number=scene.drill.workers)
    with calling(scene, LEDGER):
        pass
    with calling(scene, PLAIN):
        pass
    with calling(scene, LEDGER):
        replace_workers(scene, PLAIN, number=1)
    with calling(scene, PLAIN):
        scene.wait_until_all_ended()  # as long as the ledger holds jobs, somebody must know them
        replace_workers(scene, PLAIN, number=scene.drill.workers - 1)
    scene.wait_until(scene.has_seen_effects_of_all, "all effects", within_s=60)
    adopted = scene.count_jobs("idempotency_key LIKE 'celery:%%'")
    scene.promise("messages of plain Celery are adopted", adopted > 0, f"{adopted} were")
    scene.promise_no_second_run()


@contextmanager
def calling(scene: Scene, estate: dict[str, str]) -> Iterator[None]:
    """A fifth of the calls while the block runs, and on until each is made."""
    number = len(scene.orders) // 5
    command = [sys.executable, "-m", "devtools.drilled.estate.caller"]
    arguments = [str(len(scene.answers)), str(number), str(scene.per_s)]

    def call() -> str:
        return subprocess.run(
            [*command, *arguments],
            env={**scene.stack.env, **estate},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            timeout=CALLS_WITHIN_S,
            check=True,
        ).stdout

    with ThreadPoolExecutor(1) as executor:
        called = executor.submit(call)
        yield
        while not called.done():
            scene.pause(0.2)
    expects = "succeeded" if estate is LEDGER else "effect"
    for line in map(json.loads, called.result().splitlines()):
        order = Order(f"call-{line['number']}", "capture", {}, expects)
        scene.answers.append(Answer(order, line["id"], 0.0, 1))


def replace_workers(scene: Scene, estate: dict[str, str], *, number: int) -> None:
    """One after the other, the oldest first."""
    for worker in scene.workers[:number]:
        scene.start_worker(**estate)
        scene.stop(worker)


DRILL = Drill(
    "cutover",
    breaks="a task moves from plain Celery to the ledger under traffic, and back",
    expects="old messages are adopted, every call has its effect once",
    rehearse=rehearse,
    web=False,
    drain_s=15,  # longer than any of its runs
    environment={"DJANGO_SETTINGS_MODULE": "devtools.drilled.estate.settings", **PLAIN},
)
