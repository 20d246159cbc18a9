"""The project's settings, with the rehearsed app and a queue for it."""

import os

from config.topology import TOPOLOGY
from project.settings import *  # noqa: F403
from project.settings import INSTALLED_APPS as PROJECT_APPS
from tasks.topology import LEASE_S, Queue, Topology

INSTALLED_APPS = [*PROJECT_APPS, "devtools.drilled"]
DRILL = Queue(
    "drill",
    processes=2,
    time_limit=60,
    lease=float(os.environ.get("DRILL_LEASE_S", LEASE_S)),
    drain=int(os.environ.get("DRILL_DRAIN_S", "5")),
)
TASKS_TOPOLOGY = Topology.of([*TOPOLOGY.queues.values(), DRILL])
