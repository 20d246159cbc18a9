"""Who calls the HTTP interface: API clients with a token, people with a session.

An API client acts for its tenant; one of every tenant sees the jobs of all, and with the scope
operate pauses queues and tasks as well. A person acts for the tenant "" and, with the permission
``tasks.operate_job``, sees and operates the jobs of all tenants.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from django.conf import settings
from django.db import connection
from django.db.models.functions import Now
from django.http import HttpRequest
from ninja.security import HttpBearer
from ninja.security.base import AuthBase
from ninja.utils import check_csrf

from tasks.models import ApiClient
from tasks.problems import FORBIDDEN, Problem, unauthenticated

TOKEN_BYTES = 32
# A prefix by which secret scanners and people recognise it.
TOKEN_PREFIX = "cel_"  # noqa: S105


class Scope(StrEnum):
    ENQUEUE = "enqueue"
    READ = "read"
    OPERATE = "operate"


PERMISSIONS = {
    Scope.ENQUEUE: "tasks.add_job",
    Scope.READ: "tasks.view_job",
    Scope.OPERATE: "tasks.operate_job",
}


@dataclass(frozen=True)
class Caller:
    """Somebody known. New jobs go to ``tenant``; ``every_...`` widens what is in reach."""

    name: str
    tenant: str
    scopes: frozenset[Scope]
    every_tenant: bool = False
    every_task: bool = False


def caller_with(request: HttpRequest, *any_of: Scope) -> Caller:
    """The caller, who must have one of these scopes."""
    caller: Caller = request.auth  # type: ignore[attr-defined]
    if caller.scopes.isdisjoint(any_of):
        needed = " or ".join(any_of)
        raise Problem(FORBIDDEN, f"This needs the scope {needed}.", scopes=list(any_of))
    return caller


# --- authentication ----------------------------------------------------------------------


class TokenAuthentication(HttpBearer):
    """``Authorization: Bearer TOKEN``. A wrong token is refused, whatever cookies came with it."""

    def authenticate(self, request: HttpRequest, token: str) -> Caller:
        caller = caller_of_token(token)
        if caller is None:
            raise unauthenticated("The token is not valid.", 'Bearer error="invalid_token"')
        return caller


class SessionAuthentication(AuthBase):
    """A logged-in person. Browsers send the cookie by themselves, so CSRF is checked."""

    openapi_type = "apiKey"
    openapi_in = "cookie"
    openapi_name = settings.SESSION_COOKIE_NAME
    csrf = True

    def __call__(self, request: HttpRequest) -> Caller | None:
        if not request.user.is_authenticated:
            return None
        if check_csrf(request) is not None:
            raise Problem(FORBIDDEN, "The CSRF token is missing or wrong.")
        return caller_of_user(request.user)


AUTHENTICATION = (TokenAuthentication(), SessionAuthentication())


def caller_of_token(token: str) -> Caller | None:
    """One query by the hash. Its timing tells nothing: whoever could use it must guess SHA-256."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT name, tenant, every_tenant, may_enqueue, may_read, may_operate"
            " FROM tasks_apiclient WHERE token_hash = %s AND revoked_at IS NULL",
            [hash_of(token)],
        )
        row = cursor.fetchone()
    if row is None:
        return None
    name, tenant, every_tenant, *granted = row
    scopes = frozenset(scope for scope, given in zip(Scope, granted, strict=True) if given)
    return Caller(f"client:{name}", tenant, scopes, every_tenant=every_tenant)


def caller_of_user(user: Any) -> Caller:
    scopes = frozenset(s for s, permission in PERMISSIONS.items() if user.has_perm(permission))
    return Caller(
        f"user:{user.get_username()}",
        tenant="",
        scopes=scopes,
        every_tenant=Scope.OPERATE in scopes,
        every_task=user.is_staff,
    )


def hash_of(token: str) -> str:
    """Unsalted and fast: a token is random, so there is no dictionary to try."""
    return hashlib.sha256(token.encode()).hexdigest()


# --- tokens ------------------------------------------------------------------------------


def create_client(
    name: str, *, tenant: str, scopes: Collection[Scope], every_tenant: bool = False
) -> str:
    """Make an API client; its token, which is not kept and cannot be shown again."""
    token = new_token()
    ApiClient.objects.create(
        name=name,
        tenant=tenant,
        every_tenant=every_tenant,
        token_hash=hash_of(token),
        may_enqueue=Scope.ENQUEUE in scopes,
        may_read=Scope.READ in scopes,
        may_operate=Scope.OPERATE in scopes,
    )
    return token


def rotate_token(name: str) -> str | None:
    """A new token; the old one is refused from now on. None: no such client, or revoked."""
    token = new_token()
    rotated = ApiClient.objects.filter(name=name, revoked_at=None).update(token_hash=hash_of(token))
    return token if rotated else None


def revoke_client(name: str) -> bool:
    """Refuse its token for ever. False: no such client, or revoked already."""
    return bool(ApiClient.objects.filter(name=name, revoked_at=None).update(revoked_at=Now()))


def new_token() -> str:
    return TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
