"""Which environments may run on defaults, and how a process says that it will not start.

Without Django, because the first container reads it too.
"""

from __future__ import annotations

import sys
from typing import NoReturn

DEVELOPMENT = "development"
# Every other name is as strict as production: "prod", "staging" or a slip of the pen must not
# run on the default secret.
ON_DEFAULTS = frozenset({DEVELOPMENT, "test"})
# gunicorn starts a worker again that exits with any other code, for ever.
WILL_NEVER_START = 3


def is_production(name: str) -> bool:
    """No name at all is development."""
    return (name or DEVELOPMENT) not in ON_DEFAULTS


def refuse_to_start(sentence: str) -> NoReturn:
    """One line instead of the traceback of whatever was importing the settings."""
    print(f"error: {sentence}", file=sys.stderr)  # noqa: T201
    sys.exit(WILL_NEVER_START)
