"""How a body tells the witness that it begins, what it does, and how it ends."""

from __future__ import annotations

import http
import http.client
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from celery import current_task

from tasks.run import current_run

WITHIN_S = 30.0


class Unavailable(Exception):
    """The witness does what it is told to do in an outage: nothing, slowly."""


class Report:
    """One connection for one run: when it breaks, the witness knows that we are dead."""

    def __init__(self) -> None:
        address = urlsplit(os.environ["WITNESS_URL"])
        self._connection = http.client.HTTPConnection(
            str(address.hostname), address.port, timeout=WITHIN_S
        )

    def begin(self) -> None:
        self._tell(
            "/begin",
            job=current_task.request.id,
            task=current_task.name,
            pid=os.getpid(),
            release=os.environ.get("RELEASE", ""),
            resumed=current_run().last_checkpoint is not None,
        )

    def effect(self, key: str = "") -> bool:
        """With a ``key`` the witness does it once, as a payment provider would.

        Raises Unavailable in an outage.
        """
        return bool(self._tell("/effect", headers={"Idempotency-Key": key} if key else {})["new"])

    def end(self, how: str) -> None:
        self._tell("/end", how=how)
        self._connection.close()

    def _tell(self, path: str, headers: dict[str, str] | None = None, **what: Any) -> Any:
        self._connection.request("POST", path, json.dumps(what), headers or {})
        response = self._connection.getresponse()
        answer = json.load(response)
        if response.status == http.HTTPStatus.SERVICE_UNAVAILABLE:
            raise Unavailable
        return answer


@contextmanager
def reporting() -> Iterator[Report]:
    report = Report()
    report.begin()
    try:
        yield report
    except BaseException as error:
        report.end(type(error).__name__)
        raise
    report.end("done")
