"""The project with a drain of 5 s; for a worker under test."""

from project.settings import *  # noqa: F403
from tasks.topology import Queue, Topology

TASKS_TOPOLOGY = Topology.of([Queue("default", drain=5)])
