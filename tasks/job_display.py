"""How the admin shows a job. Nothing here asks the database or changes anything."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote, urlsplit

from celery import current_app
from django.conf import settings
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from tasks.models import Job
from tasks.payload import mask
from tasks.states import Action, State

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


def state_badge(job: Job) -> SafeString:
    return badge(job.state, SIGNS[State(job.state)], job.state, note=state_note(job))


def state_note(job: Job) -> str:
    """What the word alone does not say."""
    if job.dead_letter:
        return "dead letter"
    if job.failure:
        return job.failure.replace("_", " ")
    if job.cancel_requested_at and job.state == State.RUNNING:
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


def short_id(job: Job) -> SafeString:
    """The end of it: the beginning is the time, and alike for all jobs of a minute."""
    return format_html('<span class="mono" title="{}">…{}</span>', job.id, str(job.id)[-8:])


def moment(at: datetime | None) -> SafeString | str:
    if at is None:
        return BLANK
    local = timezone.localtime(at)
    return format_html(
        '<time datetime="{}">{}</time>', local.isoformat(), f"{local:%Y-%m-%d %H:%M:%S}"
    )


def waited(job: Job, now: datetime) -> str:
    """From acceptance to the first start, or until now; when it comes, if it is not due yet."""
    if job.state == State.QUEUED and job.run_at > now:
        return f"due in {duration(job.run_at - now)}"
    return duration((job.started_at or job.finished_at or now) - job.created_at)


def ran(job: Job, now: datetime) -> str:
    """The latest run."""
    if job.claimed_at is None or job.state in (State.QUEUED, State.DISPATCHED):
        return BLANK
    return duration((job.finished_at or now) - job.claimed_at)


def duration(time: timedelta) -> str:
    seconds = max(time.total_seconds(), 0.0)
    for size, unit in UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def payload(job: Job) -> SafeString:
    """Masked as its task says. A task that is not known here cannot say, so all is masked."""
    task = current_app.tasks.get(job.task)
    names = job.payload if task is None else getattr(task, "sensitive", ())
    note = f"{job.task} is not known here, nor which values are sensitive." if task is None else ""
    return json_block(mask(job.payload, names), note)


def result(job: Job) -> SafeString:
    return json_block(job.result, job.result_note)


def json_block(value: object, note: str = "") -> SafeString:
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return format_html('{}<pre class="block">{}</pre>', note_line(note), text)


def note_line(note: str) -> SafeString | str:
    return format_html('<p class="help">{}</p>', note) if note else ""


def traceback(text: str) -> SafeString | str:
    return format_html('<pre class="block">{}</pre>', text) if text else BLANK


def progress(value: Any) -> SafeString | str:
    """``{"done", "total", "message"}`` as a bar, anything else as it is."""
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


def bytes_preview(body: bytes, limit: int = 4096) -> SafeString:
    """The beginning, as text where it is text."""
    head = bytes(body[:limit])
    note = f"The first {limit} of {len(body)} bytes." if len(body) > limit else ""
    try:
        text = head.decode()
    except UnicodeDecodeError:
        text = head.hex(" ", 4)
    return format_html('{}<pre class="block">{}</pre>', note_line(note), text)


