"""``tasks/`` is lifted into a fresh Django project, with an app of its own, and runs a job."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from tests.broker import Corner
from tests.processes import Process, database_url, running

ROOT = Path(__file__).resolve().parents[2]

# All that a project adds to the settings of `startproject`.
SETTINGS = """
import os
from urllib.parse import urlsplit

INSTALLED_APPS += ["tasks", "shop"]
_url = urlsplit(os.environ["DATABASE_URL"])
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _url.path[1:], "USER": _url.username, "PASSWORD": _url.password,
        "HOST": _url.hostname, "PORT": _url.port,
    }
}
"""
CELERY = """
import os
from celery import Celery
from tasks.worker import install

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "site1.settings")
app = Celery("site1", broker=os.environ["BROKER_URL"])
app.conf.broker_transport_options = {"global_keyprefix": os.environ["BROKER_PREFIX"]}
install(app)
app.autodiscover_tasks()
"""
TASKS = """
from decimal import Decimal
from celery import shared_task
from tasks.task import LedgerTask

@shared_task(base=LedgerTask, key="total:{order_id}")
def total(order_id: int, prices: list[Decimal]) -> str:
    return str(sum(prices))
"""
ENQUEUE = """
from decimal import Decimal
from shop.tasks import total
from tasks.enqueue import enqueue
done = enqueue(total, {"order_id": 7, "prices": [Decimal("1.10"), Decimal("2.20")]})
assert enqueue(total, {"order_id": 7, "prices": ["1.10", "2.20"]}).job_id == done.job_id
print("result", total.AsyncResult(str(done.job_id)).get(timeout=30))
"""


@pytest.fixture
def database() -> Iterator[str]:
    """A database of its own on the server of the tests."""
    name = f"lifted_{uuid4().hex[:12]}"
    server = database_url()
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
        yield server.rpartition("/")[0] + f"/{name}"
        admin.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))


@pytest.mark.timeout(120)
@pytest.mark.django_db(transaction=True)
def test_a_fresh_project_takes_the_engine_in_and_runs_a_job(database: str, tmp_path: Path) -> None:
    corner = Corner()
    env = {
        **{k: v for k, v in os.environ.items() if k != "DJANGO_SETTINGS_MODULE"},
        **corner.env,
        "DATABASE_URL": database,
        "PYTHONPATH": str(tmp_path),
    }
    make_project(tmp_path, env)
    manage(tmp_path, env, "check")
    manage(tmp_path, env, "migrate")
    with ExitStack() as processes:
        worker = ["-m", "celery", "-A", "site1", "worker", "-l", "INFO", "-c", "1"]
        for name, command, ready in (
            ("relay", ["manage.py", "relay"], "relay_started"),
            ("worker", worker, " ready"),
        ):
            argv = [sys.executable, *command]
            process = processes.enter_context(running(Process(name, argv, env, tmp_path)))
            process.wait_for(ready)
        assert "result 3.30" in manage(tmp_path, env, "shell", "-c", ENQUEUE)
    corner.clear()


def make_project(folder: Path, env: Mapping[str, str]) -> None:
    run(folder, env, "-m", "django", "startproject", "site1", ".")
    manage(folder, env, "startapp", "shop")
    shutil.copytree(ROOT / "tasks", folder / "tasks", ignore=shutil.ignore_patterns("__pycache__"))
    append(folder / "site1" / "settings.py", SETTINGS)
    append(folder / "site1" / "celery.py", CELERY)
    append(folder / "site1" / "__init__.py", "from site1.celery import app as celery_app\n")
    append(folder / "shop" / "tasks.py", TASKS)


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def manage(folder: Path, env: Mapping[str, str], *arguments: str) -> str:
    return run(folder, env, "manage.py", *arguments)


def run(folder: Path, env: Mapping[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder, env=dict(env), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{arguments}:\n{done.stdout}\n{done.stderr}"
    return done.stdout
