"""Writes the rendered blocks into the committed files, and finds what in these is wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from devtools.topology.blocks import differences, filled, names_in
from devtools.topology.rendered import FILES, blocks_of
from tasks.topology import Topology

SHELL_FORM = re.compile(r"^(CMD|ENTRYPOINT)\s+(?!\[)(.+)$", re.MULTILINE)
SHELL_COMMAND = re.compile(
    r"^\s*(?:command|entrypoint):\s*(\[?[\"']?(?:/bin/)?(?:ba|da|a)?sh\b.*)$", re.MULTILINE
)


def write(root: Path, topology: Topology) -> list[str]:
    """The names of the files that changed."""
    changed = []
    for file in FILES:
        path = root / file
        stands = path.read_text()
        follows = filled(stands, blocks_of(file, topology))
        if follows != stands:
            path.write_text(follows)
            changed.append(file)
    return changed


def stale(root: Path, topology: Topology) -> Iterator[str]:
    """One sentence for each block that disagrees with the topology."""
    for file, renders in FILES.items():
        path = root / file
        stands = path.read_text() if path.exists() else ""
        missing = set(renders) - set(names_in(stands))
        unknown = set(names_in(stands)) - set(renders)
        if missing or unknown:
            for name in sorted(missing):
                yield (
                    f"{file}: the block {name!r} is missing. Put it back from the repository, or"
                    " remove its line from devtools/topology/rendered.py"
                )
            for name in sorted(unknown):
                yield f"{file}: nobody renders the block {name!r}. Remove its two markers"
            continue
        for difference in differences(file, stands, filled(stands, blocks_of(file, topology))):
            yield str(difference)


def shells(root: Path) -> Iterator[str]:
    """Commands that would make a shell the first process, which passes no SIGTERM on."""
    for file, pattern in (("Dockerfile", SHELL_FORM), ("docker-compose.yml", SHELL_COMMAND)):
        for match in pattern.finditer((root / file).read_text()):
            yield (
                f"{file}: {match[0].strip()!r} makes a shell process 1, which passes no SIGTERM on,"
                ' so that every stop is a kill. Write it in exec form: ["celery", "-A", ...]'
            )
