"""``./dev demo``: the promises, shown on a throw-away stack with a bank that misbehaves."""

from devtools.demo.command import main

__all__ = ["main"]
