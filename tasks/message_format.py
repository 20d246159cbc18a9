"""The version of what the relay writes into a message, so that no worker has to guess.

docs/migrations.md says when it is raised. Whatever the version, ``task``, ``id`` and
``dispatch_no`` stay headers: by them a worker gives back what it cannot read.
"""

from __future__ import annotations

from typing import Any

# Messages of before there were versions are the first one.
FIRST = 1
# What this code writes, and the newest that it reads.
NEWEST = 1


def problem(headers: Any) -> str:
    """Why a message of ours cannot be read here; empty when it can."""
    version = headers.get("v", FIRST)
    if type(version) is int and FIRST <= version <= NEWEST:
        return ""
    return f"message format {version!r:.20}, this release reads up to {NEWEST}"
