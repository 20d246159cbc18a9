"""``./dev bench``: Celeriac against plain Celery, on this machine, in the same minutes."""

from devtools.bench.command import main

__all__ = ["main"]
