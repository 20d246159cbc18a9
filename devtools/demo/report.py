"""What happened, as tables a stranger understands, and the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from devtools.bank import Fault
from devtools.demo.comparison import Books, Difference, Evidence, is_good
from devtools.demo.posting import ACCEPTED, REPEATED

ROWS_OF_A_KIND = 10
STORIES = {
    Fault.BUSY: "answered 503",
    Fault.RESET: "reset the connection",
    Fault.SLOW: "was slow",
    Fault.HANGS_UP: "charged, then hung up",
    Fault.SILENT: "charged, never answered",
}


@dataclass(frozen=True)
class Summary:
    """The figures of the first table."""

    accepted: int
    repeats: int
    retries: int
    captured: int
    failed: int
    seconds: float
    pickup_p50_s: float
    pickup_p95_s: float

    @classmethod
    def of(cls, seen: Evidence, seconds: float) -> Summary:
        statuses = Counter(answer.status for answer in seen.answers)
        states = Counter(job.state for job in seen.jobs)
        pickups = [job.pickup_s for job in seen.jobs if job.pickup_s is not None]
        return cls(
            accepted=statuses[ACCEPTED],
            repeats=statuses[REPEATED],
            retries=sum(job.retries for job in seen.jobs),
            captured=states["succeeded"],
            failed=states["failed"],
            seconds=seconds,
            pickup_p50_s=percentile(pickups, 50),
            pickup_p95_s=percentile(pickups, 95),
        )


def percentile(values: Sequence[float], percent: int) -> float:
    if len(values) < 2:
        return values[0] if values else 0.0
    return quantiles(values, n=100, method="inclusive")[percent - 1]


# --- tables ---------------------------------------------------------------------------------


def show(console: Console, seen: Evidence, seconds: float) -> None:
    console.print(summary_table(Summary.of(seen, seconds), why_failed(seen)))
    console.print(bank_table(seen.books))


def summary_table(summary: Summary, reasons: str) -> Table:
    table = _table("What the ledger says")
    rows = {
        "accepted": (f"{summary.accepted}", "202, a new job"),
        "repeats collapsed": (f"{summary.repeats}", "200, the same job's id"),
        "retries": (f"{summary.retries}", "the bank gave no definite answer"),
        "captured": (f"{summary.captured}", ""),
        "failed": (f"{summary.failed}", reasons),
        "seconds": (f"{summary.seconds:.1f}", "from the first POST to the last outcome"),
        "pickup p50 / p95": (
            f"{summary.pickup_p50_s:.2f} / {summary.pickup_p95_s:.2f} s",
            "from accepted to started, waiting for the bank's limit included",
        ),
    }
    for name, (figure, meaning) in rows.items():
        table.add_row(name, figure, meaning)
    return table


def bank_table(books: Books) -> Table:
    table = _table("What the bank's own books say")
    faults = Counter(call["fault"] for call in books["calls"])
    again = sum(call["status"] == 200 for call in books["calls"])
    table.add_row("calls", f"{len(books['calls'])}", "")
    for fault, story in STORIES.items():
        table.add_row(f"  {story}", f"{faults[fault]}", "")
    table.add_row("known keys", f"{again}", "answered with the charge made before")
    table.add_row("charges", f"{len(books['charges'])}", "")
    table.add_row("most at once", f"{books['peak']}", f"the limit is {books['limit']}")
    return table


def why_failed(seen: Evidence) -> str:
    """The reasons with their numbers, the most frequent first."""
    errors = Counter(job.error.rpartition(": ")[2] for job in seen.jobs if job.state == "failed")
    return escape(", ".join(f"{number} {reason}" for reason, number in errors.most_common(4)))


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    return table


# --- verdict --------------------------------------------------------------------------------


def show_verdict(console: Console, seen: Evidence, found: Sequence[Difference]) -> None:
    if found:
        console.print(difference_table(found))
        console.print(f"[bold red]{len(found)} differences.[/]")
        return
    good = sum(map(is_good, seen.orders))
    console.print(
        f"[bold green]The bank's books agree.[/] {good} good orders, exactly one charge each;"
        f" {len(seen.orders) - good} bad orders, no charge;"
        f" at most {seen.books['peak']} calls at once, {seen.books['limit']} are allowed."
    )


def difference_table(found: Sequence[Difference]) -> Table:
    """The first rows of each kind, so that one frequent kind does not hide the others."""
    table = Table(title="Differences", title_justify="left", title_style="bold red")
    for heading in ("order", "what", "the ledger says", "the bank says"):
        table.add_column(heading, overflow="fold")
    kinds = Counter(row.what for row in found)
    shown: Counter[str] = Counter()
    for row in found:
        shown[row.what] += 1
        if shown[row.what] <= ROWS_OF_A_KIND:
            number = "" if row.order_id is None else str(row.order_id)
            table.add_row(number, *map(escape, (row.what, row.ledger, row.bank)))
    for what, total in kinds.most_common():
        if total > ROWS_OF_A_KIND:
            table.add_row("...", escape(f"{what}: {total - ROWS_OF_A_KIND} more"))
    return table
