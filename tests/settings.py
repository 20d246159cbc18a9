"""The project's settings, and an app with tasks for tests."""

from project.settings import *  # noqa: F403
from project.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.sample_shop"]
# Nothing is collected: WhiteNoise serves what the finders find.
STATIC_ROOT = None
