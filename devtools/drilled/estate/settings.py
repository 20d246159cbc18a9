"""The rehearsed site, with the estate in it."""

from devtools.drilled.settings import *  # noqa: F403
from devtools.drilled.settings import INSTALLED_APPS as COMMON

INSTALLED_APPS = [*COMMON, "devtools.drilled.estate"]
