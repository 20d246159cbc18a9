"""Signs of life for the probes of a container: files whose age says whether a process is well.

``config/probe.py`` reads them without Django. Written to the directory of the setting
``TASKS_PULSE_DIR``; nowhere when it is empty.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

from django.conf import settings

EVERY_S = 1.0  # a busy relay turns fifty times a second
_last: dict[str, float] = {}


def give(sign: Literal["alive", "ready"]) -> None:
    """``alive``: the loop turns. ``ready``: it is known in the ledger and can work."""
    directory = getattr(settings, "TASKS_PULSE_DIR", "")
    now = time.monotonic()
    if not directory or now - _last.get(sign, -EVERY_S) < EVERY_S:
        return
    _last[sign] = now
    with suppress(OSError):  # a full disk must not end a worker
        Path(directory).mkdir(parents=True, exist_ok=True)
        Path(directory, sign).touch()
