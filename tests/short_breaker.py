"""The project with a downstream that takes four calls at once and is given up quickly, and one
that takes twenty a second."""

from django.apps import AppConfig

from project.settings import *  # noqa: F403
from tasks.topology import Breaker, Downstream, Queue, Topology


class CallingTasks(AppConfig):
    """For the relay: the rate of a task is what the task says."""

    name = "tests"

    def ready(self) -> None:
        from tests import calling_tasks  # noqa: F401


INSTALLED_APPS = [*INSTALLED_APPS, "tests.short_breaker.CallingTasks"]  # noqa: F405
BREAKER = Breaker(failure_share=0.5, least_runs=8, over_s=10, open_s=1, longest_open_s=4)
BANK = Downstream("bank", max_concurrency=4, breaker=BREAKER)
METER = Downstream("meter", rate="20/s")
TASKS_TOPOLOGY = Topology.of([Queue("limited", BANK), Queue("metered", METER), Queue("default")])
