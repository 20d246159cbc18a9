"""What the engine reads from the project's settings, each with its default."""

from __future__ import annotations

from django.conf import settings

from tasks.topology import DEFAULT, Topology


def topology() -> Topology:
    """The numbers of the deployment (``TASKS_TOPOLOGY``)."""
    return getattr(settings, "TASKS_TOPOLOGY", DEFAULT)


def release() -> str:
    """The version of the deployed code (``TASKS_RELEASE``)."""
    return getattr(settings, "TASKS_RELEASE", "")
