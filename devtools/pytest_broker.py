"""Gives every process of a parallel test run a Redis database of its own, before settings load."""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit


def own_database(env: Mapping[str, str]) -> str:
    """``BROKER_URL`` with the number of this process as the database; only for Redis."""
    url = env.get("BROKER_URL", "")
    worker = env.get("PYTEST_XDIST_WORKER", "")
    if not worker or urlsplit(url).scheme not in {"redis", "rediss"}:
        return url
    return urlsplit(url)._replace(path=f"/{int(worker.removeprefix('gw')) + 1}").geturl()


if os.environ.get("BROKER_URL"):
    os.environ["BROKER_URL"] = own_database(os.environ)
