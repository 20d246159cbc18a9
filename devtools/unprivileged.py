"""PostgreSQL refuses to run as root: how a child of root gives root up."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

INSIDE_ID = 1000


def confinement() -> Callable[[], None] | None:
    """What to run between fork and exec, or None when we are not root."""
    if os.geteuid() != 0:
        return None
    return enter_user_namespace if _may_enter_user_namespace() else become_nobody


def enter_user_namespace() -> None:
    """Root outside is an ordinary user inside, and keeps its files: nothing is chowned."""
    os.unshare(os.CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{INSIDE_ID} 0 1")
    Path("/proc/self/gid_map").write_text(f"{INSIDE_ID} 0 1")


def become_nobody() -> None:
    nobody = pwd.getpwnam("nobody")
    os.setgroups([])
    os.setgid(nobody.pw_gid)
    os.setuid(nobody.pw_uid)


def hand_over(directory: Path) -> None:
    """Gives the directory to the user that ``confinement`` turns into, if that is another."""
    if confinement() is not become_nobody:
        return
    for path in (directory, *directory.rglob("*")):
        shutil.chown(path, "nobody")
    # Temporary directories are closed to others; passing through ours is all that is granted.
    for parent in directory.parents:
        if parent.is_relative_to(tempfile.gettempdir()) and parent.stat().st_uid == os.geteuid():
            parent.chmod(parent.stat().st_mode | stat.S_IXOTH)


def explanation() -> str:
    """What a reader of a permission error needs to know, if anything."""
    if confinement() is not become_nobody:
        return ""
    return "Root may not make user namespaces here: it runs as nobody, who must reach its files."


@cache
def _may_enter_user_namespace() -> bool:
    if not hasattr(os, "unshare"):
        return False
    try:
        subprocess.run(["true"], check=True, timeout=10, preexec_fn=enter_user_namespace)
    except subprocess.SubprocessError:
        return False
    return True
