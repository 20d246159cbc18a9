"""Variables and secrets, which environments may run on defaults, and how a process says that it
will not start.

Without Django, because the first container reads it too.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

DEVELOPMENT = "development"
# Every other name is as strict as production: "prod", "staging" or a slip of the pen must not
# run on the default secret.
ON_DEFAULTS = frozenset({DEVELOPMENT, "test"})
# gunicorn starts a worker again that exits with any other code, for ever.
WILL_NEVER_START = 3


def value(name: str, default: str = "") -> str:
    """``NAME``, or the content of the file that ``NAME_FILE`` points at (a mounted secret)."""
    path = os.environ.get(f"{name}_FILE")
    if not path:
        return os.environ.get(name, default)
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        refuse_to_start(
            f"{name}_FILE is {path}, which cannot be read: {reason}. Put the secret there,"
            f" readable for this user, or unset {name}_FILE and set {name}."
        )


def is_production(name: str) -> bool:
    """No name at all is development."""
    return (name or DEVELOPMENT) not in ON_DEFAULTS


def refuse_to_start(sentence: str) -> NoReturn:
    """One line instead of the traceback of whatever was importing the settings."""
    print(f"error: {sentence}", file=sys.stderr)  # noqa: T201
    sys.exit(WILL_NEVER_START)
