"""System checks: what would break a promise is said before the first job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, register


@register()
def the_ledger_needs_postgresql(app_configs: Any, **kwargs: Any) -> Sequence[CheckMessage]:
    if settings.DATABASES["default"]["ENGINE"] == "django.db.backends.postgresql":
        return []
    return [
        Error(
            "The ledger needs PostgreSQL.",
            hint="Set DATABASES['default']['ENGINE'] to django.db.backends.postgresql.",
            id="tasks.E001",
        )
    ]


@register()
def the_ledger_needs_read_committed(app_configs: Any, **kwargs: Any) -> Sequence[CheckMessage]:
    database: dict[str, Any] = settings.DATABASES["default"]
    options = database.get("OPTIONS", {})
    level = options.get("isolation_level")
    if level is None or getattr(level, "name", "") == "READ_COMMITTED":
        return []
    return [
        Error(
            "The ledger needs the isolation level READ COMMITTED.",
            hint="Remove isolation_level from the OPTIONS of DATABASES['default']: a repeat "
            "must see the row that another transaction has just committed.",
            id="tasks.E002",
        )
    ]
