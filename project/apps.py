"""The Django app of the project itself: it owns the user model."""

from django.apps import AppConfig


class ProjectConfig(AppConfig):
    name = "project"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from project import checks  # noqa: F401  (registers the system checks)
