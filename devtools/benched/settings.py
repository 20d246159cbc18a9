"""The project's settings, with the measured app and its queues."""

from config.topology import TOPOLOGY
from project.settings import *  # noqa: F403
from project.settings import INSTALLED_APPS as PROJECT_APPS
from tasks.topology import Queue, Topology

QUEUE = "bench"
BATCHED_QUEUE = "bench-batched"
ASYNC_QUEUE = "bench-async"
INSTALLED_APPS = [*PROJECT_APPS, "devtools.benched"]
TASKS_TOPOLOGY = Topology.of(
    [
        *TOPOLOGY.queues.values(),
        Queue(QUEUE, processes=2),
        Queue(BATCHED_QUEUE, processes=2, batch=50),
        Queue(ASYNC_QUEUE, slots=100),
    ]
)
