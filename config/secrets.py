"""The first step of ``docker compose up``: secrets from the environment into files.

``python -m config.secrets DIRECTORY``. In development a missing one is made once and kept;
everywhere else it is refused, with all that are missing in one sentence.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from config.environment import ON_DEFAULTS, is_production

# Readable in this volume by the users of all images; only these containers mount it.
MODE = 0o444
DATABASE_URL = "postgres://celeriac:{password}@postgres:5432/celeriac"
BROKER_URL = "redis://:{password}@redis:6379/0"


# RELEASE is none; but it is the tag of the image, so this is the last moment to ask for it.
REQUIRED = ("RELEASE", "SECRET_KEY", "FLOWER_BASIC_AUTH")


class Missing(Exception):
    """An environment that is not for development, without a secret."""


def main(argv: list[str]) -> int:
    directory = Path(argv[0])
    try:
        files = contents(os.environ, directory)
    except Missing as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    for name, text in files.items():
        write(directory / name, text)
    return 0


def contents(env: Mapping[str, str], directory: Path) -> dict[str, str]:
    """File names and what belongs into them. Raises Missing outside of development."""
    strict = is_production(env.get("ENVIRONMENT", ""))
    if strict:
        refuse_missing(env)
    database = env.get("DATABASE_PASSWORD") or kept(directory / "database-password")
    broker = env.get("BROKER_PASSWORD") or kept(directory / "broker-password")
    flower = env.get("FLOWER_BASIC_AUTH") or f"flower:{kept(directory / 'flower-password')}"
    made = {
        "secret-key": env.get("SECRET_KEY") or kept(directory / "secret-key"),
        "database-password": database,
        "database-url": env.get("DATABASE_URL")
        or DATABASE_URL.format(password=quote(database, safe="")),
        "broker-password": broker,
        "broker-url": env.get("BROKER_URL") or BROKER_URL.format(password=quote(broker, safe="")),
        "flower-login": flower,
        "flower-password": flower.partition(":")[2],
        "redis-auth.conf": f'requirepass "{broker}"',
    }
    if not strict:
        made["admin-password"] = kept(directory / "admin-password")
    return made


def refuse_missing(env: Mapping[str, str]) -> None:
    missing = [name for name in REQUIRED if not env.get(name)]
    for server in ("DATABASE", "BROKER"):
        if not env.get(f"{server}_URL") and not env.get(f"{server}_PASSWORD"):
            missing.append(f"{server}_PASSWORD (or {server}_URL)")
    if missing:
        raise Missing(
            f"ENVIRONMENT is {env['ENVIRONMENT']}, and {', '.join(missing)} are not set. Copy"
            " .env.example to .env and fill it in; secrets are only made for you in"
            f" {' and '.join(sorted(ON_DEFAULTS))}."
        )


def kept(path: Path) -> str:
    return path.read_text().strip() if path.exists() else secrets.token_urlsafe(32)


def write(path: Path, text: str) -> None:
    if path.exists():
        path.unlink()  # it may be read by nobody but its owner, who is another user
    path.write_text(f"{text}\n")
    path.chmod(MODE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
