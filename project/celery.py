"""The Celery application. Workers, Flower and ``celery -A project`` start here."""

import logging
import os
from pathlib import Path
from typing import Any

from celery import Celery, signals

from tasks import worker

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
# Flower reads it however it is started, and refuses to start without a password.
os.environ.setdefault("FLOWER_CONF", str(Path(__file__).parent.parent / "config/flowerconfig.py"))

app = Celery("project")
app.config_from_object("config.celeryconfig")
app.autodiscover_tasks()
worker.install(app)


@signals.setup_logging.connect
def keep_the_projects_logging(loglevel: int | None, **_: Any) -> None:
    """Celery would lower every process to its own default, WARNING. ``-l DEBUG`` still works."""
    root = logging.getLogger()
    root.setLevel(min(root.level, loglevel or root.level))
