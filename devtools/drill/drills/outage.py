"""A downstream that becomes slow and then refuses each call, for a minute, and is well again.

Its limit and its breaker stand between it and the jobs that go on arriving. The witness is the
downstream: it counts the calls, and it says when they came.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from random import Random
from typing import LiteralString

from devtools.drill.books import Run, at_once, end_of, most_in_a_second
from devtools.drill.drill import Drill, order
from devtools.drill.scene import Scene
from devtools.drill.traffic import Order
from devtools.drill.witness import SLOW_S, books_of, set_outage
from tasks.topology import Breaker

LIMIT = 20
SECONDS = 0.3  # each call while all is well
BREAKER = Breaker(failure_share=0.5, least_runs=20, over_s=10.0, open_s=3.0, longest_open_s=12.0)
HEALTHY_S = 4.0
# Few jobs need no whole minute; in a quarter of it there are a few probes, too.
OUTAGE_S, JOBS_OF_A_MINUTE = (15.0, 60.0), 2000
# A relay looks at the breaker once a second; a loaded machine is a little late.
NOTICED_S = 2.0
# A run that was claimed before the breaker opened, and has not called yet.
ON_ITS_WAY_S = 1.0
OPENS_WITHIN_S = BREAKER.over_s + NOTICED_S + 3.0
# A probe that fails just then, a whole pause, and two looks: at its end and at the next outcome.
CLOSES_WITHIN_S = SLOW_S[1] + BREAKER.longest_open_s + 2 * NOTICED_S
TIMES_THE_AVERAGE = 2
REST_S = 5.0  # for the last retries, whose own time has not come


@dataclass(frozen=True)
class Opening:
    """As the ledger showed it, in epoch seconds. ``until``: then the first probe may go."""

    at: float
    until: float


@dataclass(frozen=True)
class Course:
    """What happened when."""

    broke: float
    opening: Opening
    recovered: float
    closed: float
    ended: float


def orders(random: Random, number: int) -> Order:
    return order("calling", number, seconds=SECONDS)


def rehearse(scene: Scene) -> None:
    with scene.traffic():
        scene.pause(HEALTHY_S)
        broke = time.time()
        set_outage(scene.witness_url, True)
        opening = wait_until_open(scene)
        scene.pause(max(0.0, broke + outage_s(len(scene.orders)) - time.time()))
        recovered = time.time()
        set_outage(scene.witness_url, False)
        left = scene.unfinished()
        wait_for(scene, lambda: opening_of(scene) is None, CLOSES_WITHIN_S)
    scene.wait_until_all_ended()
    course = Course(broke, opening, recovered, closed_at(scene), time.time())
    promise(scene, course, left)


def outage_s(jobs: int) -> float:
    shortest, longest = OUTAGE_S
    return max(shortest, longest * min(1.0, jobs / JOBS_OF_A_MINUTE))


def wait_until_open(scene: Scene) -> Opening:
    wait_for(scene, lambda: opening_of(scene) is not None, OPENS_WITHIN_S)
    opening = opening_of(scene)
    assert opening is not None
    return opening


def wait_for(scene: Scene, condition: Callable[[], bool], within_s: float) -> None:
    scene.wait_until(condition, "the breaker moves", within_s=within_s)


def opening_of(scene: Scene) -> Opening | None:
    at, until = moments_of(scene, "opened_at", "open_until")
    return Opening(at, until) if at else None


def closed_at(scene: Scene) -> float:
    return moments_of(scene, "closed_at")[0]


def moments_of(scene: Scene, *columns: LiteralString) -> list[float]:
    """Of the row of the limit, in epoch seconds; 0.0 is never."""
    asked = ", ".join(f"coalesce(extract(epoch FROM {name}), 0)::float8" for name in columns)
    query: LiteralString = f"SELECT {asked} FROM tasks_limit WHERE name = %s"
    with scene.stack.connect() as connection:
        row = connection.execute(query, ["downstream:witness"]).fetchone()
    return [float(str(value)) for value in row or [0.0] * len(columns)]


# --- what is promised -----------------------------------------------------------------------


def promise(scene: Scene, course: Course, left: int) -> None:
    runs = sorted(books_of(scene.witness_url).runs, key=lambda run: run.began)
    most = max(number for _, number in at_once(runs))
    scene.promise(f"never more than {LIMIT} calls at once", most <= LIMIT, f"at most {most}")
    scene.promise(
        f"the breaker opens within {OPENS_WITHIN_S:g} s",
        course.opening.at - course.broke <= OPENS_WITHIN_S,
        f"after {course.opening.at - course.broke:.1f} s,"
        f" {sum(run.was_refused for run in between(runs, 0, course.opening.at))} calls refused",
    )
    promise_spread(scene, "until it opens", between(runs, course.broke, course.opening.at))
    promise_nothing_while_open(scene, course, runs)
    promise_single_probes(scene, course, runs)
    promise_spread(scene, "from its closing on", between(runs, course.closed, course.ended))
    promise_end(scene, course, left)


def between(runs: Sequence[Run], begin: float, end: float) -> list[Run]:
    return [run for run in runs if begin < run.began < end]


def promise_spread(scene: Scene, when: str, runs: Sequence[Run]) -> None:
    """Retries and first calls alike: the downstream does not tell them apart."""
    began = [run.began for run in runs]
    average = (len(began) - 1) / max(1.0, began[-1] - began[0]) if began else 0.0
    most = most_in_a_second(began)
    scene.promise(
        f"{when}, no second has more than {TIMES_THE_AVERAGE} times the average of calls",
        bool(began) and most <= TIMES_THE_AVERAGE * average,
        f"{most} at most, {average:.1f} on average",
    )


def promise_nothing_while_open(scene: Scene, course: Course, runs: Sequence[Run]) -> None:
    """The ledger says what was claimed, the witness what came."""
    with scene.stack.connect() as connection:
        row = connection.execute(
            "SELECT count(*) FROM tasks_attempt WHERE started_at > to_timestamp(%s)"
            " AND started_at < to_timestamp(%s)",
            [course.opening.at, course.opening.until],
        ).fetchone()
    claimed = int(str(row[0])) if row else 0
    came = len(between(runs, course.opening.at + ON_ITS_WAY_S, course.opening.until))
    scene.promise(
        "between opening and first probe no attempt is spent",
        claimed == came == 0,
        f"{claimed} were claimed, {came} came",
    )


def promise_single_probes(scene: Scene, course: Course, runs: Sequence[Run]) -> None:
    probes = between(runs, course.opening.until, course.closed)
    pauses = [later.began - end_of(earlier) for earlier, later in pairwise(probes)]
    shortest, longest = min(pauses, default=0.0), max(pauses, default=0.0)
    scene.promise(
        f"then one probe at a time, each at least {BREAKER.open_s:g} s after the one before",
        len(probes) >= 2 and shortest >= BREAKER.open_s,
        f"{len(probes)} probes, {shortest:.1f} to {longest:.1f} s apart",
    )


def promise_end(scene: Scene, course: Course, left: int) -> None:
    """A pause, then twice what the calls take at the limit."""
    within_s = CLOSES_WITHIN_S + 2 * left * SECONDS / LIMIT + REST_S
    scene.promise(
        f"all is done within {within_s:.0f} s after the recovery",
        course.ended - course.recovered <= within_s,
        f"{left:,} jobs in {course.ended - course.recovered:.1f} s,"
        f" {course.closed - course.recovered:.1f} s of them until the breaker closed",
    )


DRILL = Drill(
    "outage",
    breaks="the downstream is slow and fails for a minute; its limit is 20 calls",
    expects="its breaker opens and probes singly; nothing is tried meanwhile, all is done after it",
    rehearse=rehearse,
    orders=orders,
    workers=4,
    relays=2,
    environment={
        "DRILL_LIMIT": str(LIMIT),
        "DRILL_PROCESSES": "6",
        "DRILL_BREAKER": json.dumps(asdict(BREAKER)),
    },
)
