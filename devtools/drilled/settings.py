"""The project's settings, with the rehearsed app and a queue for it."""

import os

from config.topology import TOPOLOGY
from project.settings import *  # noqa: F403
from project.settings import INSTALLED_APPS as PROJECT_APPS
from tasks.topology import LEASE_S, Downstream, Queue, Topology

INSTALLED_APPS = [*PROJECT_APPS, "devtools.drilled"]
LIMIT = int(os.environ.get("DRILL_LIMIT", "0"))
DRILL = Queue(
    "drill",
    downstream=Downstream("witness", max_concurrency=LIMIT, breaker=None) if LIMIT else None,
    processes=int(os.environ.get("DRILL_PROCESSES", "2")),
    time_limit=60,
    lease=float(os.environ.get("DRILL_LEASE_S", LEASE_S)),
    drain=int(os.environ.get("DRILL_DRAIN_S", "5")),
)
TASKS_TOPOLOGY = Topology.of([*TOPOLOGY.queues.values(), DRILL])
