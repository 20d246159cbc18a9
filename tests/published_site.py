"""The project with the tasks of the tests published to API clients; for a web server under test."""

from django.apps import AppConfig

from project.settings import *  # noqa: F403


class LedgerTasks(AppConfig):
    name = "tests"

    def ready(self) -> None:
        from tests import ledger_tasks  # noqa: F401


INSTALLED_APPS += ["tests.published_site.LedgerTasks"]  # noqa: F405
