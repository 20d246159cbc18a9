"""Keeps the sensitive arguments of a run out of what is recorded and logged about it.

An exception often quotes the value that it could not take. Where a task says ``sensitive``,
the text of those arguments is replaced in messages and tracebacks.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

from tasks.payload import MASK
from tasks.run import NO_RUN, Run, current_run

# A shorter value would blank out half of every text, and tells little.
SHORTEST = 4
# Where Celery logs what a body raised, with its traceback.
LOGGER = "celery.app.trace"


def install() -> None:
    """Further calls do nothing."""
    logger = logging.getLogger(LOGGER)
    if not any(isinstance(each, MaskingFilter) for each in logger.filters):
        logger.addFilter(MaskingFilter())


def masked(text: str, run: Run) -> str:
    for secret in secrets_of(run):
        text = text.replace(secret, MASK)
    return text


def secrets_of(run: Run) -> Sequence[str]:
    """The texts of all sensitive values of a run, the longest first."""
    if run is NO_RUN or not run.task.sensitive or not isinstance(run.claim.payload, dict):
        return ()
    values = (run.claim.payload.get(name) for name in run.task.sensitive)
    found = {text for value in values for text in texts_in(value) if len(text) >= SHORTEST}
    return sorted(found, key=len, reverse=True)


def texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for each in value.values():
            yield from texts_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from texts_in(each)
    elif value is not None and not isinstance(value, bool):
        yield str(value)


class MaskingFilter(logging.Filter):
    """Rewrites a record while a run with sensitive arguments is active."""

    def filter(self, record: logging.LogRecord) -> bool:
        run = current_run()
        if secrets_of(run):
            record.msg, record.args = masked(record.getMessage(), run), None
            if record.exc_info and record.exc_info[1] is not None:
                report = "".join(traceback.format_exception(record.exc_info[1]))
                record.exc_info, record.exc_text = None, masked(report, run)
                record.msg = f"{record.msg}\n{record.exc_text}"
        return True
