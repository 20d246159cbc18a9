"""The project with a queue of 100 slots, a short lease and a short drain; for processes under
test."""

from project.settings import *  # noqa: F403
from tasks.topology import Queue, Topology

TASKS_TOPOLOGY = Topology.of([Queue("webhooks", slots=100, lease=3, drain=4, time_limit=30)])
