"""Prefixed, coloured lines on the terminal; several threads may write at once."""

from __future__ import annotations

import os
import sys
import threading

COLOURS = ("36", "33", "32", "35", "34", "96", "93", "92", "95", "94")
RED = "31"
_lock = threading.Lock()


def _in_colour() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def paint(text: str, colour: str) -> str:
    return f"\033[{colour}m{text}\033[0m" if _in_colour() else text


def colour_of(name: str) -> str:
    """The same name has the same colour in every run."""
    return COLOURS[sum(name.encode()) % len(COLOURS)]


def say(text: str) -> None:
    with _lock:
        try:
            print(text, flush=True)
        except (BrokenPipeError, ValueError):
            # The reader has gone (`./dev up | head`); a child must not block or die of it.
            return


def echo(name: str, line: str) -> None:
    say(f"{paint(f'{name:>15} |', colour_of(name))} {line}")


def complain(text: str) -> None:
    say(paint(text, RED))
