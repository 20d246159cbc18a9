"""The signature of a task is the schema of its payload.

The stored form is the *canonical JSON form of the value as sent*: a UUID object from Python and
its text from HTTP are stored, and fingerprinted, alike; defaults of the task are never filled in.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from celery.app.task import Task

from tasks.errors import InvalidPayload
from tasks.parameter import Parameter
from tasks.strict_json import check_json, path_to


def signature_of(task: Task[Any, Any]) -> Signature:
    """The signature of a task, built once and kept on it.

    ``InvalidPayload`` if its parameters cannot be told by name (``*args``, positional-only).
    """
    try:
        return task._payload_signature  # type: ignore[attr-defined, no-any-return]
    except AttributeError:
        signature = Signature(task.name, getattr(task, "_orig_run", task.run))
        task._payload_signature = signature  # type: ignore[attr-defined]
        return signature


class Signature:
    """The parameters of one task, as the schema of its payload."""

    def __init__(self, task_name: str, function: Any) -> None:
        self._task_name = task_name
        self._parameters: dict[str, Parameter] = {}
        self._positional: list[str] = []
        self._extra: Parameter | None = None
        for parameter in inspect.signature(function).parameters.values():
            self._add(parameter, Parameter.of(parameter, function))
        self._required = [name for name, p in self._parameters.items() if p.required]

    @property
    def names(self) -> tuple[str, ...]:
        """The declared parameters, in order."""
        return tuple(self._parameters)

    def __contains__(self, name: object) -> bool:
        return name in self._parameters or (self.takes_any_name and isinstance(name, str))

    @property
    def takes_any_name(self) -> bool:
        """Whether the task has ``**kwargs``."""
        return self._extra is not None

    def bind(self, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object]:
        """The payload of a call, as sent: defaults are not filled in."""
        if len(args) > len(self._positional):
            raise InvalidPayload(
                f"task {self._task_name} takes at most {len(self._positional)} positional"
                f" arguments, {len(args)} were given"
            )
        payload = dict(zip(self._positional, args, strict=False))
        for name in payload:
            if name in kwargs:
                raise InvalidPayload(
                    "given twice, by position and by name", path=path_to("$", name)
                )
        payload.update(kwargs)
        self._check_names(payload)
        return payload

    def dump(self, payload: Mapping[str, object]) -> dict[str, object]:
        """Validates each value by its annotation and returns its canonical JSON form."""
        self._check_names(payload)
        dumped: dict[str, object] = {}
        for name, value in payload.items():
            parameter = self._parameter(name)
            dumped[name] = value if type(value) in parameter.exact else parameter.dump(value)
        check_json(dumped)
        return dumped

    def dump_value(self, name: str, value: object) -> object:
        """One argument in its canonical JSON form, without the others."""
        if name not in self:
            raise InvalidPayload(
                f"task {self._task_name} has no such parameter", path=path_to("$", name)
            )
        form = self._parameter(name).dump(value)
        check_json(form, path=path_to("$", name))
        return form

    def load(self, payload: Mapping[str, object]) -> dict[str, object]:
        """The inverse, on the worker; ``InvalidPayload`` if this release no longer fits it."""
        self._check_names(payload)
        return {name: self._loaded(name, value) for name, value in payload.items()}

    def _loaded(self, name: str, value: object) -> Any:
        parameter = self._parameter(name)
        if type(value) in parameter.exact:
            return value
        try:
            return parameter.load(value)
        except InvalidPayload:
            raise
        except Exception as exc:  # of a validator of the task; its text may quote the value
            raise InvalidPayload(
                f"expected {parameter.expected}; its check raised {type(exc).__name__}",
                path=path_to("$", name),
            ) from exc

    def schema(self) -> dict[str, Any]:
        """JSON Schema of the payload, best effort: what has no schema is ``{}``."""
        properties: dict[str, Any] = {}
        definitions: dict[str, Any] = {}
        for name, parameter in self._parameters.items():
            schema = parameter.schema()
            definitions.update(schema.pop("$defs", {}))
            properties[name] = schema
        found: dict[str, Any] = {"type": "object", "properties": properties}
        found["required"] = list(self._required)
        found["additionalProperties"] = self.takes_any_name
        return found | ({"$defs": definitions} if definitions else {})

    def _add(self, declared: inspect.Parameter, parameter: Parameter) -> None:
        if declared.kind in (declared.VAR_POSITIONAL, declared.POSITIONAL_ONLY):
            star = "*" if declared.kind is declared.VAR_POSITIONAL else "positional-only "
            raise InvalidPayload(
                f"task {self._task_name} takes {star}{declared.name}, but a payload knows its"
                " arguments by name: give each a name, or take one list"
                " (a decorator of the task needs functools.wraps)"
            )
        if declared.kind is declared.VAR_KEYWORD:
            self._extra = parameter
            return
        self._parameters[declared.name] = parameter
        if declared.kind is declared.POSITIONAL_OR_KEYWORD:
            self._positional.append(declared.name)

    def _check_names(self, payload: Mapping[str, object]) -> None:
        if not isinstance(payload, Mapping):
            raise InvalidPayload("the payload is an object with the parameters of the task")
        for name in payload:
            if name not in self:
                raise InvalidPayload(
                    f"task {self._task_name} has no such parameter", path=path_to("$", str(name))
                )
        for name in self._required:
            if name not in payload:
                raise InvalidPayload(f"missing, task {self._task_name} needs it", path=f"$.{name}")

    def _parameter(self, name: str) -> Parameter:
        found = self._parameters.get(name)
        if found is not None:
            return found
        assert self._extra is not None, "the names have been checked"
        return replace(self._extra, name=name)
