"""The bank to rehearse with as a process of its own, while somebody needs it."""

from __future__ import annotations

from contextlib import AbstractContextManager

from devtools.serving import serving


def open_bank(
    limit: int, *, seed: int = 1, forgets_keys: bool = False
) -> AbstractContextManager[str]:
    """Its address."""
    options = ["--limit", str(limit), "--seed", str(seed)]
    if forgets_keys:
        options.append("--forget-keys")
    return serving("bank", "devtools.bank", *options)
