"""Asked by Docker and Kubernetes: is this container alive, is it ready? Imports no Django.

``python -m config.probe alive`` or ``ready`` reads the signs of life that a worker or a relay
leaves in ``PULSE_DIR``; a container that leaves none is asked over HTTP. ``python -m config.probe
URL`` asks that address. Exit code 0 is yes.
"""

from __future__ import annotations

import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

# Seconds. Signs of life are given each 5 s, and a slow answer of the database may delay one.
FRESH_FOR_S = {"alive": 30.0, "ready": 20.0}
PATHS = {"alive": "/healthz", "ready": "/readyz"}
ANSWER_WITHIN_S = 3.0


def main(argv: list[str]) -> int:
    [question] = argv
    if question not in FRESH_FOR_S:
        return 0 if answers(question) else 1
    directory = Path(os.environ.get("PULSE_DIR", "/tmp/pulse"))  # noqa: S108
    if directory.is_dir():
        return 0 if is_fresh(directory / question, FRESH_FOR_S[question]) else 1
    return 0 if answers(f"http://127.0.0.1:{port()}{PATHS[question]}") else 1


def is_fresh(sign: Path, fresh_for_s: float) -> bool:
    try:
        return time.time() - sign.stat().st_mtime < fresh_for_s
    except FileNotFoundError:
        return False


def answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=ANSWER_WITHIN_S).close()  # noqa: S310
    except (urllib.error.URLError, OSError):
        return False
    return True


def port() -> str:
    return os.environ.get("WEB_BIND", "0.0.0.0:8000").rpartition(":")[2]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
