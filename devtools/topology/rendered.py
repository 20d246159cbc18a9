"""Which block of which file is filled from which template.

A template reads like the manifest that it becomes: ``$name`` is a number of ``numbers.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from string import Template
from typing import Any

from devtools.topology.numbers import of_queue, of_servers, of_service
from tasks.topology import Queue, Topology

TEMPLATES = Path(__file__).parent / "templates"

Render = Callable[[Topology], str]


def per_queue(template: str, between: str = "\n") -> Render:
    """The template once for each queue."""

    def render(topology: Topology) -> str:
        return between.join(
            fill(template, {**of_queue(queue), **beside(queue)})
            for queue in topology.queues.values()
        )

    return render


def beside(queue: Queue) -> dict[str, Any]:
    """What only templates need: no number of ``numbers.py``."""
    return {"why_capped": why_capped(queue), "too_late_s": of_queue(queue)["late_s"] + 1}


def why_capped(queue: Queue) -> str:
    """Words, for a comment."""
    if queue.limit is not None:
        return f"its downstream takes {queue.limit} at once"
    if queue.downstream is not None and queue.downstream.rate:
        return f"its downstream takes {queue.downstream.rate}"
    return "no downstream limits it"


def per_service(template: str, name: str) -> Render:
    def render(topology: Topology) -> str:
        return fill(template, of_service(topology.services[name]))

    return render


def once(template: str) -> Render:
    def render(topology: Topology) -> str:
        return fill(template, of_servers(topology))

    return render


def fill(template: str, values: Mapping[str, Any]) -> str:
    return Template((TEMPLATES / template).read_text()).substitute(values)


KUBERNETES = "config/kubernetes"
FILES: Mapping[str, Mapping[str, Render]] = {
    "docker-compose.yml": {
        "web": per_service("compose.web.yaml", "web"),
        "relay": per_service("compose.relay.yaml", "relay"),
        "workers": per_queue("compose.worker.yaml"),
        "flower": per_service("compose.flower.yaml", "flower"),
        "redis": once("compose.redis.yaml"),
        "postgres": once("compose.postgres.yaml"),
    },
    "config/redis.conf": {"memory": once("redis.conf")},
    "config/postgresql.conf": {"memory": once("postgresql.conf")},
    "config/prometheus/rules.yaml": {"queues": per_queue("prometheus.queue.yaml", between="")},
    "config/prometheus/rules.test.yaml": {
        "queues": per_queue("prometheus.queue.test.yaml", between="")
    },
    f"{KUBERNETES}/base/web.yaml": {
        "replicas": per_service("kubernetes.replicas.yaml", "web"),
        "stop": per_service("kubernetes.stop-web.yaml", "web"),
        "prestop": per_service("kubernetes.prestop.yaml", "web"),
        "resources": per_service("kubernetes.resources.yaml", "web"),
    },
    f"{KUBERNETES}/base/relay.yaml": {
        "replicas": per_service("kubernetes.replicas.yaml", "relay"),
        "stop": per_service("kubernetes.stop.yaml", "relay"),
        "resources": per_service("kubernetes.resources.yaml", "relay"),
    },
    f"{KUBERNETES}/base/workers.yaml": {"workers": per_queue("kubernetes.worker.yaml", "---\n")},
    f"{KUBERNETES}/autoscaling/autoscalers.yaml": {
        "autoscalers": per_queue("kubernetes.autoscaler.yaml", "---\n")
    },
    f"{KUBERNETES}/autoscaling/kustomization.yaml": {
        "patches": per_queue("kubernetes.unreplicated.yaml", "")
    },
}


def blocks_of(file: str, topology: Topology) -> dict[str, str]:
    return {name: render(topology) for name, render in FILES[file].items()}
