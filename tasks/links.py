"""What follows a job: Celery's links and chains, accepted in the transaction of its success.

A run that lost its job, or whose success is rolled back, enqueues nothing; a success that is
recorded has enqueued what follows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from celery import Celery, signature
from django.db import DatabaseError, transaction
from kombu.exceptions import EncodeError
from kombu.utils import json as kombu_json

from tasks import admission, inline, ledger
from tasks.strict_json import dumps


class NotFollowed(EncodeError):
    """The run succeeded and what should follow it is refused: the job fails.

    An EncodeError, because that is what Celery's tracer takes for a failure while a result is
    being stored.
    """


@dataclass(frozen=True)
class Followers:
    """Signatures as they travelled: of ``link``, and the rest of a chain, last step first."""

    app: Celery
    parent_id: str
    root_id: str
    callbacks: Sequence[Mapping[str, Any]]
    chain: Sequence[Mapping[str, Any]]


def restored(carried: Mapping[str, Any]) -> dict[str, Any]:
    """Celery's part of the headers; dates and UUIDs in signatures as they were."""
    found: dict[str, Any] = kombu_json.loads(dumps(carried)) if carried else {}
    return found


def taken_from(task: Any) -> Followers | None:
    """Take them out of the request, so that Celery's tracer does not publish them first."""
    request = task.request
    if not request.callbacks and not request.chain:
        return None
    followers = Followers(
        app=task.app,
        parent_id=request.id,
        root_id=request.root_id or request.id,
        callbacks=tuple(request.callbacks or ()),
        chain=tuple(request.chain or ()),
    )
    request.update(callbacks=None, chain=None)
    return followers


def succeed(
    job_id: UUID, fence: int, *, result: str | None, note: str, followers: Followers, value: Any
) -> bool:
    """``ledger.succeed``, with what follows. ``value`` is passed on, as ``.get()`` returns it."""
    with transaction.atomic():
        happened = ledger.succeed(job_id, fence, result=result, note=note)
        if happened:
            # A full queue must not undo a success.
            with inline.settling(), admission.waived():
                enqueue(followers, value)
    return happened


def enqueue(followers: Followers, value: Any) -> None:
    ids: dict[str, Any] = {"parent_id": followers.parent_id, "root_id": followers.root_id}
    try:
        for callback in followers.callbacks:
            signature(dict(callback), app=followers.app).apply_async((value,), **ids)
        if followers.chain:
            step = signature(dict(followers.chain[-1]), app=followers.app)
            step.apply_async((value,), chain=list(followers.chain[:-1]), **ids)
    except DatabaseError:
        raise  # the job is not settled: it runs again
    except Exception as exc:
        raise NotFollowed(f"the run succeeded, what follows is refused: {exc}") from exc
