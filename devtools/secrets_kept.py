"""Secrets of the development stack, made once and kept in files only their owner can read."""

from __future__ import annotations

import secrets
from pathlib import Path


def kept_secret(path: Path) -> str:
    """The content of the file, which is made when it is not there."""
    if not path.exists():
        write_private(path, secrets.token_urlsafe(18))
    return path.read_text().strip()


def write_private(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text(text)
