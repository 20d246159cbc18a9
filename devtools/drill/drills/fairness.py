"""A tenant that submits a job each second, beside 19 like it, then beside one with 100,000."""

import subprocess
import sys
from bisect import bisect
from collections.abc import Sequence
from random import Random

from devtools.child import ROOT
from devtools.drill.books import Books
from devtools.drill.drill import Drill, order
from devtools.drill.evidence import percentile
from devtools.drill.scene import QUEUE, TENANT, Scene
from devtools.drill.traffic import Answer, Order
from devtools.drill.witness import books_of

SECONDS = 0.1  # each job
OTHERS = 19
SMALL, LARGE = 400, 100_000  # what each of the equals has waiting, and what the one has
SUBMITTED = 60  # jobs of ours in each half
SLOTS = 6
WITHIN_DISPATCHES = 10 + 2 * SLOTS
WORSE_AT_MOST = 1.25
BACKLOG_WITHIN_S = 300
OURS_UNFINISHED = "finished_at IS NULL AND tenant = %s"


def orders(random: Random, number: int) -> Order:
    return order("bare", number, seconds=SECONDS)


def rehearse(scene: Scene) -> None:
    half = min(SUBMITTED, len(scene.orders) // 2)
    equals = [f"equal-{number}" for number in range(OTHERS)]
    beside_equals = submit(scene, scene.orders[:half], equals, SMALL)
    beside_one = submit(scene, scene.orders[half : 2 * half], ["large"], LARGE)
    scene.wait_until_all_ended()
    books = books_of(scene.witness_url)
    promise_start(scene, books, beside_one)
    promise_latency(scene, books, beside_equals, beside_one)


def submit(scene: Scene, ours: Sequence[Order], others: Sequence[str], number: int) -> list[Answer]:
    """One each second while the others keep every slot busy; then theirs are called off."""
    enqueue_backlog(scene, others, number)
    before = len(scene.answers)
    with scene.traffic(ours):
        pass
    promise_competition(scene, others)
    scene.wait_until(
        lambda: not scene.count_jobs(OURS_UNFINISHED, TENANT), "ours are done", within_s=60
    )
    scene.stack.manage("cancel", "--queue", QUEUE, "--reason", "the half is over")
    return scene.answers[before:]


def enqueue_backlog(scene: Scene, tenants: Sequence[str], number: int) -> None:
    """All at once: whoever came first would be done before the last one came."""
    subprocess.run(
        [sys.executable, "-m", "devtools.drilled.backlog", str(number), str(SECONDS), *tenants],
        cwd=ROOT,
        env=scene.stack.env,
        timeout=BACKLOG_WITHIN_S,
        check=True,
    )


def promise_competition(scene: Scene, others: Sequence[str]) -> None:
    waiting = "state = 'queued' AND tenant = %s"
    wanting = sum(scene.count_jobs(waiting, tenant) > 0 for tenant in others)
    scene.promise(
        "each other tenant has jobs waiting to the end of its half",
        wanting == len(others),
        f"{wanting} of {len(others)} have",
    )


def promise_start(scene: Scene, books: Books, ours: Sequence[Answer]) -> None:
    began = sorted(run.began for run in books.runs)
    first = {run.job: run.began for run in reversed(books.runs)}
    passed = [
        bisect(began, first[answer.job_id]) - 1 - bisect(began, answer.answered_at)
        for answer in ours
        if answer.job_id in first
    ]
    most = max(passed, default=0)
    scene.promise(
        f"a tenant's only job starts within {WITHIN_DISPATCHES} others, whoever has {LARGE:,}",
        most <= WITHIN_DISPATCHES,
        f"at most {most} started before it",
    )


def promise_latency(
    scene: Scene, books: Books, beside_equals: Sequence[Answer], beside_one: Sequence[Answer]
) -> None:
    first = {run.job: run.began for run in reversed(books.runs)}
    equal_s, one_s = (
        percentile([first[a.job_id] - a.answered_at for a in answers if a.job_id in first], 99)
        for answers in (beside_equals, beside_one)
    )
    scene.promise(
        f"99 of 100 start within {WORSE_AT_MOST} times what they take beside {OTHERS} equals",
        one_s <= WORSE_AT_MOST * equal_s,
        f"{one_s:.2f} s beside one with {LARGE:,}, {equal_s:.2f} s beside equals",
    )


DRILL = Drill(
    "fairness",
    breaks="nothing; another tenant has 100,000 jobs waiting",
    expects="whoever has one job waits no longer than among equals",
    rehearse=rehearse,
    orders=orders,
    per_s=1.0,
)
