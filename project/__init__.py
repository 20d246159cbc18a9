"""Django wiring. The import makes ``@shared_task`` find the Celery application."""

from project.celery import app as celery_app

__all__ = ["celery_app"]
