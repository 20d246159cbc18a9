"""Marked blocks of committed files: what stands there, and what should.

# topology: begin NAME
...
# topology: end
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest

BLOCK = re.compile(
    r"^(?P<indent>[ ]*)# topology: begin (?P<name>[\w.-]+)[^\n]*\n"
    r"(?P<text>.*?)^[ ]*# topology: end$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Difference:
    """``stands`` or ``follows`` is empty where the other has a line more."""

    file: str
    line: int
    stands: str
    follows: str

    def __str__(self) -> str:
        stands, follows = self.stands.strip() or "nothing", self.follows.strip() or "nothing"
        return (
            f"{self.file}:{self.line}: {stands!r} stands there, {follows!r} follows from"
            " config/topology.py. Run: ./dev topology --write"
        )


def names_in(text: str) -> list[str]:
    return [match["name"] for match in BLOCK.finditer(text)]


def filled(text: str, blocks: Mapping[str, str]) -> str:
    """The file with each of its blocks replaced; the markers and all else stay."""

    def fill(match: re.Match[str]) -> str:
        new = indented(blocks[match["name"]], match["indent"])
        start, end = match.start("text") - match.start(), match.end("text") - match.start()
        return match[0][:start] + new + match[0][end:]

    return BLOCK.sub(fill, text)


def indented(text: str, indent: str) -> str:
    lines = text.strip("\n").splitlines()
    return "".join(f"{indent}{line}\n" if line.strip() else "\n" for line in lines)


def differences(file: str, stands: str, follows: str) -> Iterator[Difference]:
    """Line by line within each block: a number that differs is named beside the right one."""
    for here, there in zip(BLOCK.finditer(stands), BLOCK.finditer(follows), strict=True):
        first = stands.count("\n", 0, here.start("text")) + 1
        pairs = zip_longest(here["text"].splitlines(), there["text"].splitlines(), fillvalue="")
        for number, (old, new) in enumerate(pairs, first):
            if old != new:
                yield Difference(file, number, old, new)
