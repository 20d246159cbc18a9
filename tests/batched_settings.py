"""The project with queues whose jobs share messages; for processes under test."""

from project.settings import *  # noqa: F403
from project.settings import INSTALLED_APPS as PROJECT_APPS
from tasks.topology import Downstream, Queue, Topology

# Tasks that the relay knows too: without that it sends each job alone.
INSTALLED_APPS = [*PROJECT_APPS, "tests.sample_shop"]
TASKS_TOPOLOGY = Topology.of(
    [
        Queue("default", batch=50, processes=1, lease=5, drain=4, time_limit=60),
        Queue("webhooks", batch=50, slots=50, lease=5, drain=4, time_limit=30),
        Queue("limited", Downstream("it", max_concurrency=60), batch=50, lease=5, time_limit=30),
    ]
)
