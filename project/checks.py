"""What ``manage.py check --deploy`` refuses of a project outside of development."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register

from project.http import BUILT
from tasks.deploy_checks import retries_of

SHORTEST_SECRET = 32  # characters
# What examples, tutorials and images use; whoever scans the internet tries these first.
KNOWN_PASSWORDS = frozenset(
    {"", "admin", "celeriac", "change-me", "changeme", "example", "flower", "guest", "password"}
    | {"postgres", "redis", "secret", "test", "user"}
)
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})


def refused(name: str, sentence: str, hint: str) -> list[CheckMessage]:
    """Not in development and test: a first look on a laptop needs none of this."""
    return [Error(sentence, hint=hint, id=name)] if settings.PRODUCTION else []


@register(deploy=True)
def it_says_that_it_is_production(app_configs: Any, **kwargs: Any) -> Sequence[CheckMessage]:
    if settings.PRODUCTION:
        return []
    return [
        Warning(
            f"ENVIRONMENT is {settings.ENVIRONMENT!r}: secrets, hosts and Flower are unchecked.",
            hint="Set ENVIRONMENT=production.",
            id="project.W001",
        )
    ]


@register(deploy=True)
def the_secret_key_is_a_secret(app_configs: Any, **kwargs: Any) -> Sequence[CheckMessage]:
    key = str(settings.SECRET_KEY)
    if len(key) >= SHORTEST_SECRET and not key.startswith("django-insecure-"):
        return []
    return refused(
        "project.E001",
        f"SECRET_KEY is a default or has less than {SHORTEST_SECRET} characters: sessions could"
        " be forged.",
        'python -c "import secrets; print(secrets.token_urlsafe(48))"',
    )


@register(deploy=True)
def the_database_password_is_a_secret(app_configs: Any, **kwargs: Any) -> Sequence[CheckMessage]:
    given = database()
    by_certificate = "sslcert" in given["OPTIONS"] or str(given["HOST"]).startswith("/")
    if by_certificate or str(given["PASSWORD"]) not in KNOWN_PASSWORDS:
        return []
    return refused(
        "project.E002",
        "The password in DATABASE_URL is a default, or there is none.",
        "Give the database a password of its own, in DATABASE_URL or DATABASE_URL_FILE.",
    )


def database() -> dict[str, Any]:
    given: dict[str, Any] = settings.DATABASES["default"]
    return given


@register(deploy=True)
def debug_is_off(app_configs: Any, **kwargs: Any) -> Sequence[CheckMessage]:
    if not settings.DEBUG:
        return []
    return refused(
        "project.E003", "DEBUG is on: error pages show settings and payloads.", "Remove DEBUG."
    )


@register(deploy=True)
def hosts_are_named(app_configs: Any, **kwargs: Any) -> Sequence[CheckMessage]:
    hosts = set(settings.ALLOWED_HOSTS)
    if "*" not in hosts and hosts - LOCAL_HOSTS:
        return []
    return refused(
        "project.E004",
        f"ALLOWED_HOSTS is {','.join(sorted(hosts))}: it names no public host, or every one.",
        "Set ALLOWED_HOSTS to the names under which the site is reached.",
    )


@register(deploy=True)
def the_broker_keys_bear_a_prefix(app_configs: Any, **kwargs: Any) -> Sequence[CheckMessage]:
    if os.environ.get("BROKER_PREFIX"):
        return []
    return refused(
        "project.E005",
        "BROKER_PREFIX is empty: an environment that gets this broker's address by accident"
        " would take messages out of these queues.",
        "Set BROKER_PREFIX=production: (a different one for each environment).",
    )


@register(deploy=True)
def flower_is_closed(app_configs: Any, **kwargs: Any) -> Sequence[CheckMessage]:
    conf = os.environ.get("FLOWER_CONF", "config/flowerconfig.py")
    users = os.environ.get("FLOWER_BASIC_AUTH", "")
    weak = any(user.partition(":")[2] in KNOWN_PASSWORDS for user in users.split(",") if user)
    open_api = os.environ.get("FLOWER_UNAUTHENTICATED_API")
    if conf.endswith("config/flowerconfig.py") and not weak and not open_api:
        return []
    return refused(
        "project.E006",
        "Flower is open: it has a default password, an API without one, or a configuration that"
        " is not config/flowerconfig.py.",
        "Set FLOWER_BASIC_AUTH=user:password; remove FLOWER_CONF and FLOWER_UNAUTHENTICATED_API.",
    )


@register(deploy=True)
def our_http_clients_never_retry(app_configs: Any, **kwargs: Any) -> Sequence[CheckMessage]:
    if not any(retries_of(client._transport) for client in BUILT):
        return []
    return [
        Error(
            "An HTTP client of the project retries by itself: a second owner of retries.",
            hint="Build it with project.http.client.",
            id="project.E007",
        )
    ]


@register(deploy=True)
def the_release_has_a_name(app_configs: Any, **kwargs: Any) -> Sequence[CheckMessage]:
    if settings.RELEASE not in ("", "dev"):
        return []
    return refused(
        "project.E008",
        "RELEASE is not set: nobody can tell which code ran a job, nor go back to an image.",
        "Set RELEASE to the tag or the commit; the image takes it as a build argument.",
    )
