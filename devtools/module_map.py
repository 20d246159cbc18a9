"""docs/modules.md: the modules of the engine by layer, from pyproject.toml and their first lines.

``python -m devtools.module_map`` writes it, ``--check`` says whether it is stale.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from devtools.child import ROOT
from devtools.console import complain, say

MAP = ROOT / "docs" / "modules.md"
STALE = "docs/modules.md is stale: run python -m devtools.module_map"
HEAD = """# The modules of `tasks/`

From what people and programs meet down to what stands on nothing. Imports point down: a module
imports from the layers below its own, never from its own or from one above. A table goes on
downwards in the same way. A new module says in [pyproject.toml](../pyproject.toml), under
`[tool.importlinter]`, where it belongs. The lines are the first sentences of the modules; this page
is written by `python -m devtools.module_map`.
"""


def main(argv: list[str]) -> int:
    if "--check" not in argv:
        MAP.write_text(module_map())
        say(f"Wrote {MAP.relative_to(ROOT)}.")
        return 0
    if MAP.read_text() == module_map():
        return 0
    complain(STALE)
    return 1


def module_map() -> str:
    return HEAD + "".join(map(part, layers((ROOT / "pyproject.toml").read_text())))


def part(line: str | list[str]) -> str:
    """A heading, or the rows of one layer under a rule of their own."""
    if isinstance(line, str):
        return f"\n## {line}\n\n| module | what it is |\n|---|---|\n"
    return "".join(f"| {link(name)} | {first_sentence(name)} |\n" for name in line)


def layers(pyproject: str) -> Iterator[str | list[str]]:
    """The comments, which head what follows, and the names of each layer, in order. Not by a
    parser of TOML: to it the comments do not exist."""
    text = pyproject.partition('containers = ["tasks"]')[2].partition("layers = [\n")[2]
    for line in text.partition("\n]")[0].splitlines():
        if comment := re.fullmatch(r"\s*# (.+)\.", line):
            yield comment[1]
        elif layer := re.fullmatch(r'\s*"(.+)",', line):
            yield layer[1].split(" | ")


def link(name: str) -> str:
    path = path_of(name)
    return f"[{name}](../{path.relative_to(ROOT)})"


def first_sentence(name: str) -> str:
    path = path_of(name)
    source = path / "__init__.py" if path.is_dir() else path
    says = ast.get_docstring(ast.parse(source.read_text())) or ""
    paragraph = " ".join(says.partition("\n\n")[0].split())
    return paragraph.replace("``", "`").replace("|", r"\|")


def path_of(name: str) -> Path:
    path = ROOT / "tasks" / name
    return path if path.is_dir() else path.with_suffix(".py")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
