"""What breakpoint() opens in ``./dev worker --solo``."""

from __future__ import annotations

import pdb
import sys


def ask() -> None:
    """As usual, but Ctrl-C keeps stopping the worker: pdb would take it over at `continue`."""
    pdb.Pdb(nosigint=True).set_trace(sys._getframe(1))
