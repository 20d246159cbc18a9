"""What the drills found, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from devtools.drill.drill import Drill
from devtools.drill.evidence import Difference, Promise, kinds
from devtools.drill.scene import Step

ROWS_OF_A_KIND = 8


@dataclass(frozen=True)
class Outcome:
    """``broke``: why the drill itself could not be played to its end."""

    drill: Drill
    seconds: float
    figures: dict[str, float]
    promises: Sequence[Promise]
    differences: Sequence[Difference]
    notes: Sequence[str] = ()
    steps: Sequence[Step] = ()
    broke: str = ""

    @property
    def passed(self) -> bool:
        return not self.differences and not self.broke


def show(console: Console, outcome: Outcome) -> None:
    """One drill: its figures, then its verdict."""
    if outcome.figures:
        console.print(figures_table(outcome))
    if outcome.steps:
        console.print(steps_table(outcome.steps))
    for note in outcome.notes:
        console.print(f"  note: {escape(note)}")
    for promise in outcome.promises:
        if promise.kept:
            console.print(f"  {escape(promise.what)}: {escape(promise.found)}")
    if outcome.broke:
        console.print(f"[bold red]It broke:[/] {escape(outcome.broke)}")
    if outcome.differences:
        console.print(difference_table(outcome.differences))
        console.print(f"[bold red]{len(outcome.differences)} differences.[/]")
    if outcome.passed:
        console.print(f"[bold green]As expected:[/] {escape(outcome.drill.expects)}.")


def figures_table(outcome: Outcome) -> Table:
    title = f"{outcome.drill.name}, {outcome.seconds:.0f} s"
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False)
    for _ in range(2):
        table.add_column(no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
    figures = [(name, f"{figure:,}") for name, figure in outcome.figures.items()]
    half = (len(figures) + 1) // 2
    left, right = figures[:half], [*figures[half:], ("", "")]
    for one, other in zip(left, right, strict=False):
        table.add_row(*one, *other)
    return table


def steps_table(steps: Sequence[Step]) -> Table:
    table = Table(title="Step by step", title_justify="left", title_style="bold")
    table.add_column("step")
    table.add_column("s", justify="right")
    for step in steps:
        table.add_row(escape(step.name), f"{step.seconds:.1f}")
    return table


def difference_table(found: Sequence[Difference]) -> Table:
    """The first rows of each kind, so that one frequent kind does not hide the others."""
    table = Table(title="Differences", title_justify="left", title_style="bold red")
    for heading in ("what", "job", "the ledger says", "the witness says"):
        table.add_column(heading, overflow="fold")
    for what, rows in kinds(found).items():
        for row in rows[:ROWS_OF_A_KIND]:
            table.add_row(*map(escape, (row.what, row.job, row.ledger, row.witness)))
        if len(rows) > ROWS_OF_A_KIND:
            table.add_row("...", f"{len(rows) - ROWS_OF_A_KIND} more", escape(what), "")
    return table


SUMMARY = ("jobs", "lost", "not ended", "overlaps", "second effects", "  with a key", "died")


def summary_table(outcomes: Sequence[Outcome]) -> Table:
    table = Table(title="All drills", title_justify="left", title_style="bold")
    table.add_column("drill", no_wrap=True)
    for heading in (*SUMMARY, "s"):
        table.add_column(heading.strip(), justify="right")
    table.add_column("")
    for outcome in outcomes:
        figures = [f"{outcome.figures[name]:,}" if outcome.figures else "" for name in SUMMARY]
        verdict = "[green]passed[/]" if outcome.passed else "[bold red]FAILED[/]"
        table.add_row(outcome.drill.name, *figures, f"{outcome.seconds:.0f}", verdict)
    return table


def as_json(outcomes: Sequence[Outcome], about: dict[str, Any]) -> dict[str, Any]:
    return {"about": about, "drills": [one_as_json(outcome) for outcome in outcomes]}


def one_as_json(outcome: Outcome) -> dict[str, Any]:
    return {
        "name": outcome.drill.name,
        "breaks": outcome.drill.breaks,
        "expects": outcome.drill.expects,
        "passed": outcome.passed,
        "seconds": round(outcome.seconds, 1),
        "figures": {name.strip(): figure for name, figure in outcome.figures.items()},
        "promises": [asdict(promise) for promise in outcome.promises],
        "differences": [asdict(row) for row in outcome.differences],
        "notes": list(outcome.notes),
        "steps": [{"step": s.name, "seconds": round(s.seconds, 1)} for s in outcome.steps],
        "broke": outcome.broke,
    }
