"""The project's settings, with the rehearsed app and a queue for it."""

import json
import os

from config.topology import TOPOLOGY
from project.settings import *  # noqa: F403
from project.settings import INSTALLED_APPS as PROJECT_APPS
from tasks.topology import LEASE_S, Breaker, Downstream, Queue, Topology

INSTALLED_APPS = [*PROJECT_APPS, "devtools.drilled"]
LIMIT = int(os.environ.get("DRILL_LIMIT", "0"))
# None: a drill that kills processes is not about failing calls.
GIVEN_BREAKER = os.environ.get("DRILL_BREAKER")
BREAKER = Breaker(**json.loads(GIVEN_BREAKER)) if GIVEN_BREAKER else None
DRILL = Queue(
    "drill",
    downstream=Downstream("witness", max_concurrency=LIMIT, breaker=BREAKER) if LIMIT else None,
    processes=int(os.environ.get("DRILL_PROCESSES", "2")),
    batch=int(os.environ.get("DRILL_BATCH", "1")),
    time_limit=60,
    lease=float(os.environ.get("DRILL_LEASE_S", LEASE_S)),
    drain=int(os.environ.get("DRILL_DRAIN_S", "5")),
)
TASKS_TOPOLOGY = Topology.of([*TOPOLOGY.queues.values(), DRILL])
