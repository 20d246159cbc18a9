"""Half of all jobs are cancelled before they run, and the whole service stops in the meantime.

One by one and by filter, before there is a worker, while others drain the queue, and with their
messages on the broker. The witness decides whether one of them ran.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx

from devtools.drill.drill import Drill, order
from devtools.drill.scene import Scene
from devtools.drill.traffic import ANSWER_WITHIN_S, AT_ONCE, Answer, Order
from devtools.drill.witness import books_of

WORKERS, PROCESSES = 3, 2
# The jobs that are kept last so long in all that each fault meets some.
DRAIN_LASTS_S = 20.0
BODY_S = (0.01, 0.5)
# Of the kept jobs: how many have succeeded when the service is stopped, and when it is killed.
STOPPED_AT, KILLED_AT = 0.25, 0.6
DOWN_S = 2.0
REACHED_WITHIN_S = 600.0
TRIES = 20
REASON = "nobody wants it any more"
UNREPORTED = (
    "state = 'cancelled' AND NOT EXISTS (SELECT FROM tasks_operatoraction a"
    " WHERE a.job_id = tasks_job.id AND a.actor <> '' AND a.reason = %s)"
)


def rehearse(scene: Scene) -> None:
    total = len(scene.orders)
    scene.orders = [wanted_or_not(number, total) for number in range(total)]
    with scene.traffic():
        pass
    canceller = Canceller(scene)
    canceller.before_anybody_runs()
    for _ in range(WORKERS):
        scene.start_worker()
    with ThreadPoolExecutor(1) as meanwhile:
        late = meanwhile.submit(canceller.while_others_run)
        scene.kill(scene.relays[0])
        scene.start_relay()
        scene.kill(scene.any_worker())
        scene.start_worker()
        late.result()
    reach(scene, STOPPED_AT)
    start_again_after(scene, scene.stop, canceller)
    reach(scene, KILLED_AT)
    start_again_after(scene, scene.kill, canceller)
    scene.wait_until_all_ended()
    canceller.promise()


def wanted_or_not(number: int, total: int) -> Order:
    """Odd ones are to be cancelled, a quarter of these in each way."""
    seconds = DRAIN_LASTS_S * WORKERS * PROCESSES / max(1, total // 2)
    seconds = min(max(seconds, BODY_S[0]), BODY_S[1])
    task = {1: "dropped", 5: "dropped_late"}.get(number % 8, "stepped" if number % 4 else "bare")
    return order(task, number, seconds=round(seconds, 3))


def reach(scene: Scene, share: float) -> None:
    wanted = int(share * len(scene.orders) / 2)
    scene.wait_until(
        lambda: scene.count_jobs("state = 'succeeded'") >= wanted,
        f"{wanted} jobs to succeed",
        within_s=REACHED_WITHIN_S,
    )


def start_again_after(scene: Scene, end: Callable[..., None], canceller: "Canceller") -> None:
    # The workers first: those that outlive the relays would empty the broker.
    for child in (*scene.workers, *scene.relays):
        end(child)
    canceller.on_the_broker()
    scene.pause(DOWN_S)
    scene.start_relay()
    for _ in range(WORKERS):
        scene.start_worker()


class Canceller:
    """Cancels as a caller does, and keeps what it was told."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.cancelled: set[str] = set()
        self.by_filter = 0
        self.on_broker = 0
        self._headers = {"Authorization": f"Bearer {scene.token}"}

    # --- when ---------------------------------------------------------------------------

    def before_anybody_runs(self) -> None:
        """Also what comes early in the queue: later on it would be too late for that."""
        answers, early = self.scene.answers, len(self.scene.answers) // 3
        self.all_of("dropped")
        self.each([a for a in answers if number_of(a) % 8 == 3])
        self.each([a for a in answers if number_of(a) % 8 in (5, 7) and number_of(a) < early])

    def while_others_run(self) -> None:
        early = len(self.scene.answers) // 3
        self.by_command("dropped_late", early)
        late = [a for a in self.scene.answers if number_of(a) % 8 == 7 and number_of(a) >= early]
        self.each(late)

    def on_the_broker(self) -> None:
        """While nobody is there: their messages are."""
        with self.scene.stack.connect() as connection:
            rows = connection.execute(
                "SELECT id::text FROM tasks_job WHERE state = 'dispatched' AND started_at IS NULL"
            ).fetchall()
        ids = {str(row[0]) for row in rows}
        before = len(self.cancelled)
        self.each([answer for answer in self.scene.answers if answer.job_id in ids])
        self.on_broker += len(self.cancelled) - before

    # --- how ----------------------------------------------------------------------------

    def each(self, answers: Sequence[Answer]) -> None:
        """The last ones first: the workers come from the other side."""
        with (
            httpx.Client(headers=self._headers, timeout=ANSWER_WITHIN_S) as client,
            ThreadPoolExecutor(AT_ONCE) as callers,
        ):
            done = callers.map(lambda answer: self.one(client, answer.job_id), reversed(answers))
            self.cancelled |= set(filter(None, done))

    def one(self, client: httpx.Client, job_id: str) -> str:
        """Its id when it was cancelled at once, "" when it was too late."""
        url = f"{self.scene.stack.web_url}/api/jobs/{job_id}/cancel"
        for _ in range(TRIES):
            response = client.post(url, json={"reason": REASON})
            if response.status_code not in (429, 503):
                break
        state = response.json().get("state") if response.status_code == 202 else ""
        return job_id if state == "cancelled" else ""

    def all_of(self, task: str) -> None:
        body = {"task": f"devtools.drilled.tasks.{task}", "reason": REASON}
        with httpx.Client(headers=self._headers, timeout=ANSWER_WITHIN_S) as client:
            while True:
                response = client.post(f"{self.scene.stack.web_url}/api/jobs/cancel", json=body)
                told = response.raise_for_status().json()
                self.by_filter += told["cancelled"]
                if not told["more"]:
                    break
        self.note(a for a in self.scene.answers if a.order.task.endswith(f".{task}"))

    def by_command(self, task: str, beyond: int) -> None:
        name = f"devtools.drilled.tasks.{task}"
        self.scene.stack.manage("cancel", "--task", name, "--reason", REASON)
        meant = [a for a in self.scene.answers if a.order.task == name and number_of(a) >= beyond]
        self.by_filter += len(meant)
        self.note(meant)

    def note(self, answers: Iterable[Answer]) -> None:
        self.cancelled |= {answer.job_id for answer in answers}

    # --- what is promised ---------------------------------------------------------------

    def promise(self) -> None:
        """What ran although it was cancelled, whatever the ledger says of it."""
        scene, half = self.scene, len(self.scene.orders) // 2
        ran = {run.job for run in books_of(scene.witness_url).runs} & self.cancelled
        scene.promise("no cancelled job runs", not ran, f"{len(ran)} of {len(self.cancelled)} did")
        scene.promise(
            "half of the jobs are cancelled before they run",
            len(self.cancelled) >= half + self.on_broker,
            f"{len(self.cancelled):,} of {len(scene.orders):,}, {self.by_filter:,} by filter",
        )
        scene.promise(
            "a message on the broker does not keep a job from being cancelled",
            self.on_broker > 0,
            f"{self.on_broker} were there",
        )
        unreported = scene.count_jobs(UNREPORTED, REASON)
        scene.promise("who cancelled, and why, is kept", not unreported, f"{unreported} without")
        scene.answers = [
            replace(a, order=replace(a.order, expects="cancelled"))
            if a.job_id in self.cancelled
            else a
            for a in scene.answers
        ]


def number_of(answer: Answer) -> int:
    return int(answer.order.key.removeprefix("drill-"))


DRILL = Drill(
    "cancel",
    breaks="half of the jobs are cancelled; relays and workers stop, are killed, start again",
    expects="no cancelled job runs, every other one ends once",
    rehearse=rehearse,
    workers=0,
    per_s=400.0,
)
