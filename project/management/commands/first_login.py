"""``manage.py first_login DIRECTORY``: the administrator of a first look. Not in production."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandParser

NAME = "admin"


class Command(BaseCommand):
    help = "In development: creates the user admin with the password kept there, and prints it."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("directory", type=Path)

    def handle(self, *args: Any, **options: Any) -> None:
        if settings.PRODUCTION:
            self.stdout.write("For the first administrator: manage.py createsuperuser")
            return
        password = (options["directory"] / "admin-password").read_text().strip()
        flower = (options["directory"] / "flower-login").read_text().strip().replace(":", " / ")
        user = get_user_model()
        if not user.objects.filter(username=NAME).exists():
            user.objects.create_superuser(NAME, "", password)
        self.stdout.write(
            f"\n  Admin     http://localhost:8000/admin/  {NAME} / {password}\n"
            "  API docs  http://localhost:8000/api/docs\n"
            f"  Flower    http://localhost:5555/        {flower}  (with --profile watch)\n"
        )
