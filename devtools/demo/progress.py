"""Live bars on a terminal, one line now and then elsewhere."""

from __future__ import annotations

import time
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from devtools.demo.ledger_view import Tally

LINE_EVERY_S = 2.0


class Display(Protocol):
    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...
    def update(self, posted: int, tally: Tally) -> None: ...


def display(console: Console, *, calls: int, orders: int) -> Display:
    kind = Bars if console.is_terminal else Lines
    return kind(console, calls=calls, orders=orders)


class Bars:
    def __init__(self, console: Console, *, calls: int, orders: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=32),
            MofNCompleteColumn(),
            TextColumn("{task.fields[detail]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._posted = self._progress.add_task("posted", total=calls, detail="each key twice")
        self._captured = self._progress.add_task("finished", total=orders, detail="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def update(self, posted: int, tally: Tally) -> None:
        self._progress.update(self._posted, completed=posted)
        self._progress.update(self._captured, completed=tally.finished, detail=told(tally))


class Lines:
    def __init__(self, console: Console, *, calls: int, orders: int) -> None:
        self._console = console
        self._calls, self._orders = calls, orders
        self._told_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return

    def update(self, posted: int, tally: Tally) -> None:
        now = time.monotonic()
        at_the_end = posted == self._calls and tally.finished == self._orders
        if now - self._told_at < LINE_EVERY_S and not at_the_end:
            return
        self._told_at = now
        self._console.print(
            f"  posted {posted}/{self._calls}, finished {tally.finished}/{self._orders}:"
            f" {told(tally)}"
        )


def told(tally: Tally) -> str:
    return f"{tally.succeeded} captured, {tally.failed} failed, {tally.retries} retries"
