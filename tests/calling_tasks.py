"""Ledger tasks that call a stub of a downstream; workers load them with ``-I``."""

from __future__ import annotations

import os
import urllib.error
import urllib.request

from celery import shared_task

from tasks.errors import RetryAfter
from tasks.task import LedgerTask


class BankUnavailable(Exception):
    """It answered with an error, or not at all."""


@shared_task(
    base=LedgerTask, name="c.call", queue="limited", autoretry_for=(BankUnavailable,),
    retry_backoff=1, retry_backoff_max=4, max_retries=50,
)  # fmt: skip
def call(number: int) -> None:
    ask(number)


@shared_task(base=LedgerTask, name="c.metered", queue="metered")
def metered(number: int) -> None:
    ask(number)


@shared_task(base=LedgerTask, name="c.six_a_minute", rate_limit="6/m")
def six_a_minute(number: int) -> None:
    ask(number)


@shared_task(base=LedgerTask, name="c.as_often_as_it_likes")
def as_often_as_it_likes(number: int) -> None:
    ask(number)


def ask(number: int) -> None:
    url = f"{os.environ['STUB_URL']}/{number}"
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError as error:
        if error.code == 429:
            seconds = float(error.headers["Retry-After"])
            raise RetryAfter(seconds, "429", pause_downstream=True) from error
        raise BankUnavailable(error.code) from error
    except OSError as error:
        raise BankUnavailable(str(error)) from error
