"""``./dev topology``: one place for numbers, and everything that follows from it."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from devtools.child import ROOT
from devtools.console import complain, say
from devtools.topology.files import shells, stale, write
from devtools.topology.formats import FORMATS
from devtools.topology.table import shown
from tasks.soundness import faults, notes
from tasks.topology import Topology


def main(argv: list[str]) -> int:
    given = parse(argv)
    try:
        topology = declared()
    except ValueError as error:  # a number that nothing can be derived from
        complain(f"config/topology.py: {error}")
        return 1
    if given.write:
        return report_written(write(given.root, topology), topology)
    if given.check:
        return report(problems(given.root, topology), topology)
    say(FORMATS[given.format](topology) if given.format else shown(topology))
    return 0


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./dev topology",
        description="Shows what follows from config/topology.py, with the arithmetic.",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", action="store_true", help="render it into the manifests")
    what.add_argument(
        "--check", action="store_true", help="fail where a manifest disagrees or numbers clash"
    )
    what.add_argument("--format", choices=FORMATS, help="for manifests of your own")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def declared() -> Topology:
    """Imported here and now: its numbers may be refused while it is being read."""
    topology: Topology = importlib.import_module("config.topology").TOPOLOGY
    return topology


def problems(root: Path, topology: Topology) -> list[str]:
    """Each with both numbers and what to do. No file is compared with numbers that clash."""
    clashes = [f"{fault.id}  {fault.sentence} {fault.hint}" for fault in faults(topology)]
    return clashes or [*stale(root, topology), *shells(root)]


def report(found: list[str], topology: Topology) -> int:
    """Notes are no reason to fail."""
    for problem in found:
        complain(problem)
    for note in notes(topology):
        say(f"note: {note}")
    if not found:
        say("The manifests follow from config/topology.py, and its numbers fit together.")
    return 1 if found else 0


def report_written(changed: list[str], topology: Topology) -> int:
    say("\n".join(f"wrote {file}" for file in changed) or "Nothing to write.")
    clashes = [f"{fault.id}  {fault.sentence} {fault.hint}" for fault in faults(topology)]
    if clashes:
        complain("The manifests follow from config/topology.py, but its numbers clash:")
    return report(clashes, topology)
