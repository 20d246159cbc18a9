"""``python -m devtools.manifests``: the deployment's files, each read by the parser of its tool.

No Docker and no cluster is needed. A tool that is missing here is named; in CI that is a failure.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from devtools.child import ROOT
from devtools.console import complain, say

WITHIN_S = 120.0
BIN = Path(sys.executable).parent
KUBERNETES = Path("config/kubernetes")
# What somebody applies. The others are parts of these.
BUILT = ("base", "jobs", "example/app", "example/jobs")
UNPACKED_TOOLS = Path(".var/tools/usr/bin")


@dataclass(frozen=True)
class Reading:
    """``argv`` is None where the tool is missing; ``cure`` says how it comes here."""

    what: str
    argv: Sequence[str] | None
    cure: str = ""


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="celeriac-manifests-") as directory:
        failed = [reading for reading in readings(Path(directory)) if not passes(reading)]
    return 1 if failed else 0


def readings(directory: Path) -> list[Reading]:
    kustomize = kustomize_command()
    built = [directory / f"{name.replace('/', '-')}.yaml" for name in BUILT]
    return [
        Reading(
            "compose schema",
            [str(BIN / "check-jsonschema"), "--builtin-schema", "vendor.compose-spec", COMPOSE],
        ),
        # Not the package's script, which exits 0 on a bad file.
        Reading("compose parser", [compose_binary(), "--profile", "*", "config", "--quiet"]),
        Reading("Dockerfile", [str(BIN / "hadolint"), "Dockerfile"]),
        *(
            Reading(
                f"kustomize {name}",
                kustomize and [*kustomize, str(KUBERNETES / name), "-o", str(path)],
                "install kustomize, or kubectl 1.21 or newer",
            )
            for name, path in zip(BUILT, built, strict=True)
        ),
        Reading(
            "kubernetes schema",
            kustomize and [str(BIN / "kubernetes-validate"), "--strict", *map(str, built)],
            "it reads what kustomize builds",
        ),
        Reading("alerts", promtool("check", "config", "config/prometheus/prometheus.yml"), PROM),
        Reading(
            "alerts fire", promtool("test", "rules", "config/prometheus/rules.test.yaml"), PROM
        ),
    ]


COMPOSE = "docker-compose.yml"
PROM = "promtool is part of Debian's package prometheus (see .ci/run)"


def compose_binary() -> str:
    spec = importlib.util.find_spec("compose")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "docker-compose")


def kustomize_command() -> list[str] | None:
    if shutil.which("kustomize"):
        return ["kustomize", "build"]
    return ["kubectl", "kustomize"] if shutil.which("kubectl") else None


def promtool(*arguments: str) -> list[str] | None:
    found = shutil.which("promtool") or shutil.which("promtool", path=ROOT / UNPACKED_TOOLS)
    return [found, *arguments] if found else None


def passes(reading: Reading) -> bool:
    if reading.argv is None:
        say(f"{reading.what}: not read, {reading.cure}")
        return not os.environ.get("CI")
    done = subprocess.run(
        reading.argv,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    if done.returncode != 0:
        complain(f"{reading.what}: {' '.join(reading.argv)}\n{done.stdout}")
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
