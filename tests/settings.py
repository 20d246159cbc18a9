"""The project's settings, an app with tasks for tests, and numbers that nobody changes."""

from project.settings import *  # noqa: F403
from project.settings import INSTALLED_APPS
from tests.sample_topology import TOPOLOGY

INSTALLED_APPS = [*INSTALLED_APPS, "tests.sample_shop"]
TASKS_TOPOLOGY = TOPOLOGY
# Nothing is collected: WhiteNoise serves what the finders find.
STATIC_ROOT = None
