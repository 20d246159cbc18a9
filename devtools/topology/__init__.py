"""``./dev topology``: what follows from config/topology.py, shown, written and checked."""

from devtools.topology.command import main

__all__ = ["main"]
