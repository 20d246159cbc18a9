"""``manage.py rollout_check``: can this code run what waits? Exit code 1 when it cannot."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection

from tasks.models import Job
from tasks.rollout import MISFITS_MAX, Misfit, Report, check
from tasks.tables import table

SHAPE_SHOWN = 60  # characters


class Command(BaseCommand):
    help = (
        "Before a deploy, with the code to be deployed: bind every unfinished job to its task."
        " Exits 1 and lists what it cannot run, and a worker would hold. Never prints a payload."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--queue", help="only what waits in this queue")
        parser.add_argument("--json", action="store_true", help="the report as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        if Job._meta.db_table not in connection.introspection.table_names():
            self.stdout.write("There is no ledger yet, so nothing waits.")
            return
        report = check(options["queue"])
        if options["json"]:
            self.stdout.write(json.dumps(asdict(report), ensure_ascii=False, indent=2))
        elif report.misfits:
            self.stdout.write(listed(report))
        else:
            self.stdout.write(f"{counted(report)} fit this code.")
        if report.misfits:
            raise CommandError("This code cannot run all that waits.", returncode=1)


def listed(report: Report) -> str:
    lines = table(("TASK", "SHAPE", "JOBS", "PROBLEM"), [row(m) for m in report.misfits])
    more = f"\nThe list ends after {MISFITS_MAX} lines." * (len(report.misfits) >= MISFITS_MAX)
    return f"{lines}{more}\nOf {counted(report)}."


def row(misfit: Misfit) -> tuple[object, ...]:
    shape = misfit.shape
    if len(shape) > SHAPE_SHOWN:
        shape = f"{shape[: SHAPE_SHOWN - 1]}…"
    how = f" ({misfit.refused} of {misfit.sampled} sampled)" if misfit.sampled else ""
    return misfit.task, shape or "no parameters", f"{misfit.jobs:,}", misfit.problem + how


def counted(report: Report) -> str:
    shapes = f"{report.shapes:,} shape{'' if report.shapes == 1 else 's'}"
    return f"{report.jobs:,} unfinished job{'' if report.jobs == 1 else 's'} in {shapes}"
