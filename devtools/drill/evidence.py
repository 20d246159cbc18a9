"""Everything that is known after a drill, and every way in which it may be wrong."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import quantiles

from devtools.drill.books import (
    Books,
    Effect,
    Overlap,
    Run,
    end_of,
    overlaps,
    second_effects,
    seconds_until_next_run,
)
from devtools.drill.traffic import Answer

# How an order must end that no ledger knows.
EFFECT = "effect"
TERMINAL = ("succeeded", "failed", "cancelled")
# A frozen process that wakes after its lease is ended within this.
ENDED_AFTER_WAKING_S = 1.0


@dataclass(frozen=True)
class Kill:
    pid: int
    at: float


@dataclass(frozen=True)
class Freeze:
    """From before the first SIGSTOP until after the last SIGCONT."""

    pids: frozenset[int]
    began: float
    ended: float

    @property
    def until(self) -> float:
        """From then on nothing may happen any more that began before it."""
        return self.ended + ENDED_AFTER_WAKING_S

    def met(self, run: Run) -> bool:
        return run.pid in self.pids and run.began <= self.ended and end_of(run) >= self.began


@dataclass(frozen=True)
class Promise:
    """What one drill promises beside the others."""

    what: str
    kept: bool
    found: str


@dataclass(frozen=True)
class JobRow:
    """The ledger's word."""

    id: str
    key: str
    state: str
    failure: str
    attempts: int
    crashes: int
    error: str


@dataclass(frozen=True)
class Evidence:
    answers: Sequence[Answer]
    jobs: Sequence[JobRow]
    books: Books
    kills: Sequence[Kill]
    freezes: Sequence[Freeze]
    promises: Sequence[Promise]
    unwritten_s: float = 0.0

    # --- figures ------------------------------------------------------------------------

    @property
    def accepted(self) -> list[Answer]:
        return [answer for answer in self.answers if answer.job_id]

    @property
    def states(self) -> Counter[str]:
        return Counter(job.state for job in self.jobs)

    @property
    def deaths(self) -> list[Run]:
        return [run for run in self.books.runs if run.died]

    def figures(self) -> dict[str, float]:
        """The line of the report."""
        found = overlaps(self.books.runs)
        again = second_effects(self.books)
        unexcused = [one for one in again if not self.excuses_second_effect(*one)]
        return {
            "jobs": len(self.answers),
            "accepted": len(self.accepted),
            "succeeded": self.states["succeeded"],
            "failed": self.states["failed"],
            "lost": sum(row.what in LOST for row in differences(self)),
            "not ended": sum(job.state not in TERMINAL for job in self.jobs),
            "runs": len(self.books.runs),
            "died": len(self.deaths),
            "overlaps": sum(not self.excuses_overlap(one) for one in found),
            "overlaps of frozen": sum(self.excuses_overlap(one) for one in found),
            "second effects": len(again),
            "  with a key": sum(bool(effect.key) for effect, _ in again),
            "  not explained": len(unexcused),
            "repeats refused": self.books.repeats,
            "crashes": sum(job.crashes for job in self.jobs),
            "attempts spent": sum(max(job.attempts - 1, 0) for job in self.jobs),
            "post p50 ms": round(percentile([a.first_s for a in self.answers], 50) * 1000, 1),
            "post p99 ms": round(percentile([a.first_s for a in self.answers], 99) * 1000, 1),
            "longest rerun s": round(max(seconds_until_next_run(self.books.runs), default=0.0), 1),
        }

    # --- what may be --------------------------------------------------------------------

    def excuses_overlap(self, overlap: Overlap) -> bool:
        """The earlier run was frozen when the later began, and was ended soon after it woke."""
        return any(
            overlap.earlier.pid in freeze.pids
            and freeze.began <= overlap.later.began <= freeze.until
            and overlap.until <= freeze.until
            for freeze in self.freezes
        )

    def excuses_second_effect(self, effect: Effect, before: Sequence[Effect]) -> bool:
        """Only the bare way may do it twice, and only where a fault explains each one before."""
        return not effect.key and all(
            self.could_not_settle(one) or self.had_just_woken(effect, one) for one in before
        )

    def could_not_settle(self, effect: Effect) -> bool:
        """Its process died, or was frozen beyond its lease, before anybody knew of the effect."""
        run = self.books.runs[effect.run]
        freezes = [freeze for freeze in self.freezes if freeze.met(run)]
        if freezes and not self.was_killed_after(run):
            return any(effect.at <= freeze.until for freeze in freezes)
        return run.died or self.was_killed_after(run)

    def had_just_woken(self, effect: Effect, other: Effect) -> bool:
        """The other run took over while this one was frozen, and this one was not ended yet."""
        run, successor = self.books.runs[effect.run], self.books.runs[other.run]
        return any(
            freeze.met(run) and freeze.began <= successor.began and effect.at <= freeze.until
            for freeze in self.freezes
        )

    def was_killed_after(self, run: Run) -> bool:
        """It was the last run of a process that was killed, or its outcome was still unwritten."""
        is_last = not any(
            other.pid == run.pid and other.began > run.began for other in self.books.runs
        )
        return any(
            (is_last or kill.at - end_of(run) <= self.unwritten_s)
            and kill.pid == run.pid
            and kill.at >= run.began
            for kill in self.kills
        )


def percentile(values: Sequence[float], percent: int) -> float:
    if len(values) < 2:
        return values[0] if values else 0.0
    return quantiles(values, n=100, method="inclusive")[percent - 1]


# --- differences ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """One row of what is wrong. Without any, the drill has passed."""

    what: str
    job: str
    ledger: str
    witness: str


NOT_ACCEPTED = "never accepted"
NO_ROW = "accepted, and not in the ledger"
NO_EFFECT = "ended, and no effect"
LOST = (NO_ROW, NO_EFFECT)
NOT_ENDED = "has not ended"


def differences(seen: Evidence) -> list[Difference]:
    checks: tuple[Callable[[Evidence], Iterator[Difference]], ...] = (
        not_accepted,
        wrong_ends,
        missing_effects,
        two_at_once,
        second_effects_without_excuse,
        unexplained_deaths,
        attempts_spent,
        broken_promises,
    )
    return [row for check in checks for row in check(seen)]


def not_accepted(seen: Evidence) -> Iterator[Difference]:
    for answer in seen.answers:
        if not answer.job_id:
            yield Difference(NOT_ACCEPTED, answer.order.key, answer.problem, "")


def wrong_ends(seen: Evidence) -> Iterator[Difference]:
    jobs = {job.id: job for job in seen.jobs}
    for answer in seen.accepted:
        job, expects = jobs.get(answer.job_id), answer.order.expects
        if job is None:
            if expects != EFFECT:
                yield Difference(NO_ROW, answer.job_id, "", "")
        elif job.state not in TERMINAL:
            yield Difference(NOT_ENDED, job.id, f"{job.state} {job.error}", "")
        elif expects not in (job.state, f"{job.state} ({job.failure})", EFFECT):
            found = f"{job.state} {job.failure} {job.error}"
            yield Difference(f"not {expects}", job.id, found, "")


def missing_effects(seen: Evidence) -> Iterator[Difference]:
    done = {effect.job for effect in seen.books.effects}
    jobs = {job.id: job for job in seen.jobs}
    for answer in seen.accepted:
        job = jobs.get(answer.job_id)
        ends_well = answer.order.expects in (EFFECT, "succeeded")
        if ends_well and answer.job_id not in done and (not job or job.state in TERMINAL):
            yield Difference(NO_EFFECT, answer.job_id, job.state if job else "no row", "")


def two_at_once(seen: Evidence) -> Iterator[Difference]:
    for overlap in overlaps(seen.books.runs):
        if not seen.excuses_overlap(overlap):
            told = f"{told_of(overlap.earlier)} and {told_of(overlap.later)}"
            yield Difference("two runs at once", overlap.earlier.job, "", told)


def second_effects_without_excuse(seen: Evidence) -> Iterator[Difference]:
    for effect, before in second_effects(seen.books):
        if not seen.excuses_second_effect(effect, before):
            told = " and ".join(effect_of(seen, one) for one in (*before, effect))
            yield Difference("effect twice", effect.job, "", told)


def unexplained_deaths(seen: Evidence) -> Iterator[Difference]:
    """A process that nobody killed, and that did not mean to die."""
    killed = {kill.pid for kill in seen.kills}
    frozen = {pid for freeze in seen.freezes for pid in freeze.pids}
    for run in seen.deaths:
        if run.pid not in killed | frozen and not run.task.endswith(("poisonous", "hungry")):
            yield Difference("its process died by itself", run.job, "", told_of(run))


def attempts_spent(seen: Evidence) -> Iterator[Difference]:
    """What a fault costs must not be counted as an attempt, but for a call that was refused."""
    refused = Counter(run.job for run in seen.books.runs if run.was_refused)
    for job in seen.jobs:
        if job.attempts > 1 + refused[job.id]:
            told = f"{refused[job.id]} calls refused"
            yield Difference("attempts spent", job.id, f"{job.attempts} attempts", told)


def broken_promises(seen: Evidence) -> Iterator[Difference]:
    for promise in seen.promises:
        if not promise.kept:
            yield Difference(promise.what, "", "", promise.found)


def told_of(run: Run) -> str:
    took = "still running" if run.ended is None else f"{run.ended - run.began:.3f} s, {run.how}"
    return f"run {run.number} in process {run.pid} at {run.began % 1000:.3f} ({took})"


def effect_of(seen: Evidence, effect: Effect) -> str:
    """With how long after it woke, where it was frozen: that decides."""
    run = seen.books.runs[effect.run]
    woke = [freeze.ended for freeze in seen.freezes if freeze.met(run)]
    since = "".join(f", {effect.at - at:.3f} s after it woke" for at in woke)
    return f"effect at {effect.at % 1000:.3f}{since} by {told_of(run)}"


def kinds(found: Sequence[Difference]) -> dict[str, list[Difference]]:
    grouped: defaultdict[str, list[Difference]] = defaultdict(list)
    for row in found:
        grouped[row.what].append(row)
    return dict(grouped)
