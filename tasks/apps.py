"""The Django app of the job engine."""

from django.apps import AppConfig
from django.db.backends.signals import connection_created
from django.db.models.signals import post_migrate, pre_migrate
from django.utils.module_loading import autodiscover_modules


class TasksConfig(AppConfig):
    name = "tasks"
    verbose_name = "Background jobs"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from tasks import checks, deploy_checks  # noqa: F401  (registers the system checks)
        from tasks.environment import GUARD, claim_ledger
        from tasks.migrating import be_brief, be_patient

        connection_created.connect(GUARD.check, dispatch_uid="tasks.environment.guard")
        post_migrate.connect(claim_ledger, sender=self, dispatch_uid="tasks.environment.claim")
        pre_migrate.connect(be_brief, sender=self, dispatch_uid="tasks.migrating.before")
        post_migrate.connect(be_patient, sender=self, dispatch_uid="tasks.migrating.after")

        # Celery finds them in workers only; views, the admin and the relay need them too.
        autodiscover_modules("tasks")
