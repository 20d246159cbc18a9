"""What stands between a new release and its rollout: the gate closes when a check says no."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from devtools.child import ROOT

KUBECTL = """#!/bin/sh
echo "$*" >>"$CALLS"
case "$*" in
kustomize*) printf 'metadata:\\n  namespace: shop-production\\n' ;;
*"get job"*) echo "$CONDITIONS" ;;
*logs*) echo "TASK unknown" ;;
esac
"""


def deploy(directory: Path, *, conditions: str) -> tuple[subprocess.CompletedProcess[str], str]:
    """With a kubectl that only writes down what it is asked for."""
    kubectl, calls = directory / "kubectl", directory / "calls"
    kubectl.write_text(KUBECTL)
    kubectl.chmod(0o755)
    path = f"{directory}:{os.environ['PATH']}"
    env = {"PATH": path, "CALLS": str(calls), "CONDITIONS": conditions}
    done = subprocess.run(
        [ROOT / "config/kubernetes/deploy", "shop"],
        env=env, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    return done, calls.read_text()


def test_what_is_deployed_is_applied_only_when_the_job_before_it_is_complete(
    tmp_path: Path,
) -> None:
    done, calls = deploy(tmp_path, conditions="SuccessCriteriaMet Complete")
    assert done.returncode == 0, done.stderr
    order = ["delete job before-rollout", "apply -k shop/jobs", "get job", "apply -k shop/app",
             "rollout status"]  # fmt: skip
    assert sorted(order, key=calls.index) == order
    assert "--namespace=shop-production delete job" in calls


@pytest.mark.parametrize("conditions", ["Failed", "FailureTarget Failed"])
def test_a_check_that_fails_ends_the_deploy_before_the_rollout(
    tmp_path: Path, conditions: str
) -> None:
    done, calls = deploy(tmp_path, conditions=conditions)
    assert done.returncode == 1
    assert "shop/app" not in calls
    assert "TASK unknown" in done.stderr
    assert done.stderr.endswith("before-rollout failed: nothing is rolled out.\n")


def test_on_kubernetes_one_job_checks_migrates_and_checks_what_waits_in_this_order() -> None:
    [job] = yaml.safe_load_all((ROOT / "config/kubernetes/jobs/jobs.yaml").read_text())
    pod = job["spec"]["template"]["spec"]
    commands = [one["command"][2] for one in (*pod["initContainers"], *pod["containers"])]
    assert commands == ["check", "migrate", "rollout_check"]
    assert (job["spec"]["backoffLimit"], pod["restartPolicy"]) == (0, "Never")


def test_with_compose_what_waits_is_checked_after_the_migration() -> None:
    services: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    gate = services["rollout-check"]
    assert gate["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}
    assert gate["restart"] == "no"
    assert "preflight" in services["migrate"]["depends_on"]
    recipe = (ROOT / "docs/production-checklist.md").read_text()
    assert "docker compose run --rm rollout-check && docker compose up -d" in recipe
