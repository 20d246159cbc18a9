"""The release before: it has a task that the next one has no more."""

from devtools.drilled.settings import *  # noqa: F403
from devtools.drilled.settings import INSTALLED_APPS as COMMON

INSTALLED_APPS = [*COMMON, "devtools.drilled.leaving"]
