"""The Django app of the job engine."""

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class TasksConfig(AppConfig):
    name = "tasks"
    verbose_name = "Background jobs"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from tasks import checks  # noqa: F401  (registers the system checks)

        # Celery finds them in workers only; views, the admin and the relay need them too.
        autodiscover_modules("tasks")
