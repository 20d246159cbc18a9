"""The project's settings, with the measured app and a queue for it."""

from config.topology import TOPOLOGY
from project.settings import *  # noqa: F403
from project.settings import INSTALLED_APPS as PROJECT_APPS
from tasks.topology import Queue, Topology

QUEUE = "bench"
BATCHED_QUEUE = "bench-batched"
INSTALLED_APPS = [*PROJECT_APPS, "devtools.benched"]
TASKS_TOPOLOGY = Topology.of(
    [
        *TOPOLOGY.queues.values(),
        Queue(QUEUE, processes=2),
        Queue(BATCHED_QUEUE, processes=2, batch=50),
    ]
)
