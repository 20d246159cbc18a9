"""The project's own user, from the first migration on: adding one later means moving a table."""

from django.contrib.auth.models import AbstractUser


class User(AbstractUser):
    """Empty until you need a field."""
