"""``manage.py api_client``: create, rotate or revoke an API client."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import IntegrityError, transaction

from tasks.clients import Scope, create_client, revoke_client, rotate_token


class Command(BaseCommand):
    help = (
        "Creates an API client and prints its token, once and alone on stdout:"
        " api_client NAME --tenant T --scopes enqueue,read"
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--tenant", help='whose jobs it enqueues and sees; "" is nobody\'s')
        parser.add_argument(
            "--every-tenant",
            action="store_true",
            help="sees the jobs of all; with operate it pauses queues and tasks and cancels",
        )
        parser.add_argument("--scopes", default="enqueue,read", help="of enqueue, read, operate")
        action = parser.add_mutually_exclusive_group()
        action.add_argument("--rotate", action="store_true", help="new token; the old one ends")
        action.add_argument("--revoke", action="store_true", help="refuse its token for ever")

    def handle(self, *args: Any, **options: Any) -> None:
        name = options["name"]
        if options["revoke"]:
            self.revoke(name)
        elif options["rotate"]:
            self.stdout.write(rotate(name))
        else:
            every = options["every_tenant"]
            tenant = "" if every and options["tenant"] is None else options["tenant"]
            self.stdout.write(create(name, tenant, scopes(options["scopes"]), every_tenant=every))

    def revoke(self, name: str) -> None:
        if not revoke_client(name):
            raise CommandError(f"There is no API client {name!r} that is not revoked already.")
        self.stderr.write(f"Revoked {name!r}.")


def scopes(text: str) -> frozenset[Scope]:
    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in Scope]
    if unknown:
        raise CommandError(f"Unknown scope {unknown[0]!r}. There are {', '.join(Scope)}.")
    return frozenset(map(Scope, names))


def create(
    name: str, tenant: str | None, granted: frozenset[Scope], *, every_tenant: bool = False
) -> str:
    if tenant is None:
        raise CommandError("Say whose jobs it may enqueue and see: --tenant T, or --every-tenant")
    if every_tenant and Scope.ENQUEUE in granted and Scope.OPERATE not in granted:
        raise CommandError("With --every-tenant, say --scopes read,operate: who enqueues cancels.")
    for what, text in (("name", name), ("tenant", tenant)):
        if len(text) > 100 or not text.isprintable():
            raise CommandError(f"The {what} must be at most 100 printable characters.")
    try:
        with transaction.atomic():
            return create_client(name, tenant=tenant, scopes=granted, every_tenant=every_tenant)
    except IntegrityError:
        raise CommandError(
            f"There is an API client {name!r} already. Use --rotate for a new token,"
            " or another name."
        ) from None


def rotate(name: str) -> str:
    token = rotate_token(name)
    if token is None:
        raise CommandError(f"There is no API client {name!r} that is not revoked.")
    return token
