"""The project with a lease of 3 s; for workers and relays under test."""

from project.settings import *  # noqa: F403
from tasks.topology import Queue, Topology

TASKS_TOPOLOGY = Topology.of([Queue("default", lease=3)])
