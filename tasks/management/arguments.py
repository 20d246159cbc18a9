"""What operators type: moments, durations, and who they are."""

from __future__ import annotations

import getpass
import os
import re
from argparse import ArgumentTypeError
from datetime import datetime, timedelta

from tasks.representations import moment

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def whoever_types() -> str:
    try:
        return f"command:{getpass.getuser()}"
    except (ImportError, KeyError, OSError):  # in a container, a user without a name
        return f"command:{os.getuid()}"


def given_moment(text: str) -> datetime | None:
    try:
        return moment(text)
    except ValueError as exc:
        raise ArgumentTypeError(str(exc)) from exc


def given_duration(text: str) -> timedelta:
    """``90s``, ``30m``, ``2h``, ``1d``."""
    found = re.fullmatch(r"([0-9]{1,6})([smhd])", text)
    if found is None or not int(found[1]):
        raise ArgumentTypeError("must be a duration, as 90s, 30m, 2h or 1d")
    return timedelta(seconds=int(found[1]) * UNITS_S[found[2]])
