"""Flower's configuration: closed, and for looking only.

``project.celery`` names this file to every ``celery -A project flower``, so no flag can be
forgotten. Options of the command line win over it.

``FLOWER_BASIC_AUTH``: ``user:password``, several with commas; or ``FLOWER_BASIC_AUTH_FILE``.
``FLOWER_READ_ONLY=false`` lets people revoke, which cancels the job.

``/healthcheck`` answers everybody with OK, for probes; ``/metrics`` names tasks and workers and
asks for the password like all other pages.
"""

import os

from flower.views.monitor import Metrics  # type: ignore[import-untyped]
from tornado.web import authenticated

from config.environment import value as _value

basic_auth = [user.strip() for user in _value("FLOWER_BASIC_AUTH").split(",") if user.strip()]
if not basic_auth or any(not all(user.partition(":")) for user in basic_auth):
    raise SystemExit(
        "Flower does not start without a password: set FLOWER_BASIC_AUTH=user:password"
    )

read_only = os.environ.get("FLOWER_READ_ONLY", "true").lower() not in {"0", "false", "no", "off"}

# The ledger keeps the history; Flower's copy in memory only has to fill its pages.
max_tasks = 10_000
max_workers = 500
# Seconds. Names of replaced replicas would pile up with each deploy.
purge_offline_workers = 120

if not hasattr(Metrics.get, "__wrapped__"):
    Metrics.get = authenticated(Metrics.get)
