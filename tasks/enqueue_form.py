"""The form that enqueues a job by hand: a task, its payload as JSON, and how to call the intent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib.admin.widgets import AdminTextareaWidget, AdminTextInputWidget
from django.utils.timezone import get_current_timezone_name

from tasks.enqueue import NAME_MAX, PRIORITY_RANGE, Enqueued, enqueue
from tasks.errors import InvalidKey, InvalidPayload, KeyConflict, TasksError
from tasks.keys import MAX_KEY_LENGTH, fresh_key
from tasks.signature import signature_of
from tasks.strict_json import parse

SKELETON_DEPTH = 4
MOMENT_FORMATS = ("%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S")


class EnqueueForm(forms.Form):
    """Bound to one task. ``enqueue()`` gives the answer, or None and an error at its field."""

    payload = forms.CharField(
        strip=False,
        widget=AdminTextareaWidget(attrs={"class": "vLargeTextField mono", "spellcheck": "false"}),
    )
    key = forms.CharField(
        required=False, max_length=MAX_KEY_LENGTH, label="Idempotency key",
        widget=AdminTextInputWidget,
    )  # fmt: skip
    tenant = forms.CharField(required=False, max_length=NAME_MAX, widget=AdminTextInputWidget)
    priority = forms.IntegerField(
        initial=0, min_value=PRIORITY_RANGE[0], max_value=PRIORITY_RANGE[-1],
        help_text="From -100 to 100; higher goes first.",
    )  # fmt: skip
    run_at = forms.DateTimeField(
        required=False, label="Not before", input_formats=MOMENT_FORMATS,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format=MOMENT_FORMATS[0]),
    )  # fmt: skip
    # Made when the form is shown, so that sending it twice is one job.
    minted_key = forms.CharField(widget=forms.HiddenInput, max_length=MAX_KEY_LENGTH)

    def __init__(self, task: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.task = task
        self.fields["payload"].initial = json.dumps(skeleton(schema_of(task)), indent=2)
        self.fields["minted_key"].initial = fresh_key
        self.fields["key"].help_text = key_help(task)
        self.fields["run_at"].help_text = f"Time zone: {get_current_timezone_name()}."

    def clean_payload(self) -> dict[str, Any]:
        try:
            value = parse(self.cleaned_data["payload"].encode())
        except InvalidPayload as exc:
            raise forms.ValidationError(str(exc)) from exc
        if not isinstance(value, dict):
            raise forms.ValidationError("A payload is an object: {…}")
        return value

    def enqueue(self) -> Enqueued | None:
        """Call it once the form is valid."""
        data = self.cleaned_data
        try:
            return enqueue(
                self.task,
                data["payload"],
                key=data["key"] or self.key_of_the_form(),
                tenant=data["tenant"],
                priority=data["priority"],
                run_at=data["run_at"],
            )
        except TasksError as error:
            self.add_error(self.field_of(error), str(error))
            return None

    def key_of_the_form(self) -> str | None:
        """None where the task itself knows what one intent is."""
        names_its_intents = self.task.key or self.task.dedupe_window
        return None if names_its_intents else self.cleaned_data["minted_key"]

    def field_of(self, error: TasksError) -> str | None:
        if isinstance(error, KeyConflict | InvalidKey):
            return "key"
        if isinstance(error, InvalidPayload):
            return error.path if error.path in self.fields else "payload"
        return None


def key_help(task: Any) -> str:
    if task.key:
        return f"Empty: {task.key}, filled from the payload."
    if task.dedupe_window:
        return f"Empty: equal payloads within {task.dedupe_window:g} s are one job."
    return "Empty: this form is one job, however often it is sent."


# --- what a task is and takes ------------------------------------------------------------


@dataclass(frozen=True)
class Offer:
    """A row of the list to choose from. Not the task: a template calls what can be called."""

    name: str
    queue: str
    says: str


def offer(task: Any) -> Offer:
    first_line = (task.__doc__ or "").strip().partition("\n")[0]
    return Offer(task.name, task.queue or "default", first_line)


@dataclass(frozen=True)
class Parameter:
    """A row of the table beside the form."""

    name: str
    type: str
    required: bool
    default: str
    sensitive: bool


def schema_of(task: Any) -> dict[str, Any]:
    """Of the payload; empty for a task whose parameters cannot be told by name."""
    try:
        return signature_of(task).schema()
    except InvalidPayload:
        return {}


def parameters_of(task: Any) -> list[Parameter]:
    schema = schema_of(task)
    return [
        Parameter(
            name=name,
            type=type_name(of, schema.get("$defs", {})),
            required=name in schema["required"],
            default=json.dumps(of["default"], ensure_ascii=False) if "default" in of else "",
            sensitive=name in task.sensitive,
        )
        for name, of in schema.get("properties", {}).items()
    ]


def skeleton(
    schema: Mapping[str, Any], definitions: Mapping[str, Any] | None = None, depth: int = 0
) -> Any:
    """What must be given, as nulls: one that was forgotten is refused, a made-up value is not."""
    definitions = schema.get("$defs", {}) if definitions is None else definitions
    schema = resolved(schema, definitions)
    if "const" in schema:
        return schema["const"]
    if schema.get("type") == "array":
        return []
    if schema.get("type") != "object" or depth == SKELETON_DEPTH:
        return None
    properties = schema.get("properties", {})
    return {
        name: skeleton(properties.get(name, {}), definitions, depth + 1)
        for name in schema.get("required", ())
    }


def type_name(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """For people: ``integer``, ``string (uuid)``, ``array of string``, ``"eur" or "usd"``."""
    if "$ref" in schema:
        title = schema["$ref"].rpartition("/")[2]
        target = resolved(schema, definitions)
        return type_name(target, definitions) if "enum" in target else str(title)
    if "enum" in schema:
        return " or ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(type_name(one, definitions) for one in schema["anyOf"])
    name = str(schema.get("type", "any JSON"))
    if name == "array" and "items" in schema:
        return f"array of {type_name(schema['items'], definitions)}"
    return f"{name} ({schema['format']})" if "format" in schema else name


def resolved(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    found: Mapping[str, Any] = definitions.get(name, schema)
    return found
