"""The numbers for teams with manifests of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from devtools.topology.numbers import numbers
from tasks.topology import Topology


def as_json(topology: Topology) -> str:
    return json.dumps(numbers(topology), indent=2)


def as_env(topology: Topology) -> str:
    """``PAYMENTS_REPLICAS=4``"""
    parts = numbers(topology)
    named = {**parts["queues"], **parts["services"], "servers": parts["servers"]}
    return "\n".join(
        f"{variable(part, name)}={value}"
        for part, values in named.items()
        for name, value in values.items()
        if name not in ("name", "resource")
    )


def variable(*names: str) -> str:
    return re.sub(r"\W", "_", "_".join(names)).upper()


def as_helm_values(topology: Topology) -> str:
    """YAML with camel case, as charts like it."""
    return "\n".join(yaml_lines(numbers(topology)))


def yaml_lines(values: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    for name, value in values.items():
        key = camel(name)
        if isinstance(value, Mapping):
            yield f"{indent}{key}:"
            yield from yaml_lines(value, f"{indent}  ")
        else:
            yield f"{indent}{key}: {json.dumps(value)}"


def camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda match: match[1].upper(), name)


FORMATS: dict[str, Callable[[Topology], str]] = {
    "env": as_env,
    "json": as_json,
    "helm-values": as_helm_values,
}
