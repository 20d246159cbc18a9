"""How the admin shows a job: its columns and fields, each a function of the job.

Nothing here asks the database. Jobs come with ``now``, the clock of the database.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from django.conf import settings
from django.contrib import admin
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from tasks.payload import mask
from tasks.registry import task_of
from tasks.states import Action, State

# A job of the admin's queryset: its model has no ``now``.
type Job = Any
type Shown = SafeString | str

BLANK = "–"
# A sign beside the word: no state is told by its colour alone.
SIGNS = {
    State.QUEUED: "○",
    State.DISPATCHED: "◔",
    State.RUNNING: "▶",
    State.SUCCEEDED: "✓",
    State.FAILED: "✕",
    State.CANCELLED: "⊘",
}
UNITS = ((86400, "d"), (3600, "h"), (60, "min"))
PREVIEW_BYTES = 4096


# --- what it is --------------------------------------------------------------------------


@admin.display(description="id")
def short_id(job: Job) -> Shown:
    """The end of it: the beginning is the time, and alike for all jobs of a minute."""
    return format_html('<span class="mono" title="{}">…{}</span>', job.id, str(job.id)[-8:])


@admin.display(description="tenant")
def tenant(job: Job) -> Shown:
    if not job.tenant:
        return BLANK
    url = f"{reverse('admin:tasks_job_changelist')}?{urlencode({'tenant': job.tenant})}"
    return format_html('<a href="{}">{}</a>', url, job.tenant)


@admin.display(description="key")
def key(job: Job) -> Shown:
    name = job.idempotency_key or job.former_key
    note = "" if job.idempotency_key else " (given up)"
    return format_html('<span class="key" title="{0}">{0}</span>{1}', name, note)


@admin.display(description="on hold because")
def hold_reason(job: Job) -> Shown:
    return job.hold_reason or BLANK


# --- where it is -------------------------------------------------------------------------


@admin.display(description="state")
def state(job: Job) -> Shown:
    return badge(job.state, SIGNS[State(job.state)], job.state, note=state_note(job))


def state_note(job: Job) -> str:
    """What the word alone does not say."""
    if job.dead_letter:
        return "dead letter"
    if job.failure:
        return str(job.failure.replace("_", " "))
    if job.state == State.RUNNING and job.cancel_requested_at:
        return "asked to stop"
    if job.state == State.QUEUED:
        return "on hold" if job.hold_reason else "" if job.due else "scheduled"
    return ""


def badge(kind: str, sign: str, text: str, *, note: str = "") -> SafeString:
    return format_html(
        '<span class="badge badge-{}"><span aria-hidden="true">{}</span> {}</span>{}',
        kind,
        sign,
        text,
        format_html(' <span class="badge-note">{}</span>', note) if note else "",
    )


@admin.display(description="cancelled because")
def cancel_reason(job: Job) -> Shown:
    return job.cancel_reason or BLANK


@admin.display(description="waited")
def waited(job: Job) -> Shown:
    """From acceptance to the first start, or until now; when it comes, if it is not due yet."""
    if job.state == State.QUEUED and job.run_at > job.now:
        return f"due in {duration(job.run_at - job.now)}"
    return duration((job.started_at or job.finished_at or job.now) - job.created_at)


@admin.display(description="ran")
def ran(job: Job) -> Shown:
    """The latest run."""
    if job.claimed_at is None or job.state in (State.QUEUED, State.DISPATCHED):
        return BLANK
    return duration((job.finished_at or job.now) - job.claimed_at)


def duration(time: timedelta) -> str:
    seconds = max(time.total_seconds(), 0.0)
    for size, unit in UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


# --- times -------------------------------------------------------------------------------


def time_of(field: str, description: str) -> Callable[[Any], Shown]:
    """A column or field that shows a time of a row."""

    @admin.display(description=description)
    def shown(row: Any) -> Shown:
        return moment(getattr(row, field))

    shown.__name__ = f"{field}_shown"  # a name for its CSS class, not that of a model field
    return shown


def moment(at: datetime | None) -> Shown:
    if at is None:
        return BLANK
    local = timezone.localtime(at)
    return format_html(
        '<time datetime="{}">{}</time>', local.isoformat(), f"{local:%Y-%m-%d %H:%M:%S}"
    )


created = time_of("created_at", "created")
run_at = time_of("run_at", "not before")
start_by = time_of("start_by", "start by")
started = time_of("started_at", "first start")
claimed = time_of("claimed_at", "latest start")
finished = time_of("finished_at", "finished")
held = time_of("held_at", "on hold since")
lease = time_of("lease_expires_at", "lease until")


# --- what it carries ---------------------------------------------------------------------


@admin.display(description="payload")
def payload(job: Job) -> Shown:
    """Masked as its task says. A task that is not known here cannot say, so all is masked."""
    task = task_of(job.task)
    if task is None:
        note = "The task is not known here, and so neither which of its values are sensitive."
        return json_block(mask(job.payload, job.payload), note)
    return json_block(mask(job.payload, getattr(task, "sensitive", ())))


@admin.display(description="progress")
def progress(job: Job) -> Shown:
    """``{"done", "total", "message"}`` as a bar, anything else as it is."""
    value = job.progress
    if value is None:
        return BLANK
    if not isinstance(value, Mapping) or not {"done", "total"} <= value.keys():
        return json_block(value)
    return format_html(
        '<progress value="{0}" max="{1}"></progress> {0} of {1} {2}',
        value["done"],
        value["total"],
        value.get("message") or "",
    )


@admin.display(description="result")
def result(job: Job) -> Shown:
    return json_block(job.result, job.result_note) if job.state == State.SUCCEEDED else BLANK


@admin.display(description="error")
def error(job: Job) -> Shown:
    """Of the latest run that failed, which may have been tried again since."""
    if not job.error_type and not job.error_message:
        return BLANK
    return format_html(
        "<strong>{}</strong> {}{}", job.error_type, job.error_message, block(job.error_traceback)
    )


def json_block(value: object, note: str = "") -> Shown:
    return block(json.dumps(value, indent=2, ensure_ascii=False), note)


def bytes_block(body: bytes) -> Shown:
    """The beginning, as text where it is text."""
    head = bytes(body[:PREVIEW_BYTES])
    cut = len(body) > PREVIEW_BYTES
    return block(text_or_hex(head), f"The first {len(head)} of {len(body)} bytes" if cut else "")


def text_or_hex(data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return data.hex(" ", 4)
    return text if text.isprintable() or not set(text) & CONTROL else data.hex(" ", 4)


CONTROL = frozenset(map(chr, range(32))) - set("\t\n\r")


def block(text: str, note: str = "") -> Shown:
    """Text as it is, scrolled inside its frame. Nothing for no text."""
    if not text:
        return ""
    shown = format_html('<pre class="block" tabindex="0">{}</pre>', text)
    return format_html('<p class="help">{}</p>{}', note, shown) if note else shown


# --- where to go from here ---------------------------------------------------------------


def flower_url(job: Job) -> str:
    """Where Flower shows this job; empty without a Flower."""
    root = getattr(settings, "TASKS_FLOWER_URL", "")
    if urlsplit(root).scheme not in ("http", "https"):
        return ""
    return f"{root.rstrip('/')}/task/{quote(str(job.id))}"


def possible_actions(job: Job) -> list[Action]:
    """What an operator can do to a job in this state."""
    if job.state == State.FAILED:
        return [Action.REPLAY, Action.DISMISS] if job.dead_letter else [Action.REPLAY]
    return [Action.CANCEL] if job.finished_at is None else []
