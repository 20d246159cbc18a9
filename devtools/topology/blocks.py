"""Marked blocks of committed files: what stands there, and what should.

# topology: begin NAME
...
# topology: end
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest

BLOCK = re.compile(
    r"^(?P<indent>[ ]*)# topology: begin (?P<name>[\w.-]+)[^\n]*\n"
    r"(?P<text>.*?)^[ ]*# topology: end$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Difference:
    """Of one block: a line that tells, and how many more differ.

    ``stands`` or ``follows`` is empty where the other has a line more.
    """

    file: str
    block: str
    line: int
    stands: str
    follows: str
    more: int

    def __str__(self) -> str:
        lines = "line differs" if self.more == 1 else "lines differ"
        more = f" In the block {self.block!r} {self.more} more {lines}." if self.more else ""
        return (
            f"{self.file}:{self.line}: {quoted(self.stands)} stands there,"
            f" {quoted(self.follows)} follows from config/topology.py.{more}"
            " Run: ./dev topology --write"
        )


def quoted(line: str) -> str:
    return repr(line.strip()) if line.strip() else "nothing"


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
    """At most one for each block: a new queue is a dozen blocks, not a hundred lines."""
    for here, there in zip(BLOCK.finditer(stands), BLOCK.finditer(follows), strict=True):
        first = stands.count("\n", 0, here.start("text")) + 1
        pairs = list(unequal(here["text"].splitlines(), there["text"].splitlines()))
        if pairs:
            # A comment only repeats the number that differs.
            number, old, new = next(filter(tells, pairs), pairs[0])
            yield Difference(file, here["name"], first + number, old, new, len(pairs) - 1)


def unequal(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    """Index in the old, its line, and the line that belongs there."""
    for what, a, a_end, b, b_end in SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes():
        if what != "equal":
            for offset, pair in enumerate(zip_longest(old[a:a_end], new[b:b_end], fillvalue="")):
                yield a + min(offset, max(a_end - a - 1, 0)), *pair


def tells(pair: tuple[int, str, str]) -> bool:
    return any(line.strip() and not line.lstrip().startswith("#") for line in pair[1:])
