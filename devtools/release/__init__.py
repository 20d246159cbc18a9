"""``./dev release``: keeps what the next release must get along with."""

from devtools.release.command import main

__all__ = ["main"]
