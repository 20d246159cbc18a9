"""What people add to docker-compose.yml, as Docker's own parser resolves it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from devtools.child import ROOT
from devtools.manifests import compose_binary

RECIPE = re.compile(r"```yaml\n(services:\n.*?)```", re.DOTALL)
SERVERS = {"postgres", "redis"}
NOT_OF_THE_IMAGE = {*SERVERS, "prometheus"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "docker-compose.yml", tmp_path)
    return tmp_path


def services(project: Path, *options: str) -> dict[str, dict[str, Any]]:
    done = subprocess.run(
        [compose_binary(), *options, "config", "--format=json"],
        cwd=project, env={"PATH": os.environ["PATH"]},
        capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)["services"]
    return found


def test_variables_of_ones_own_reach_every_container_of_the_image(project: Path) -> None:
    (project / "app.env").write_text("SHOP_URL=https://shop/\nENVIRONMENT=another\n")
    found = services(project, "--profile", "*")
    assert len(found) > len(NOT_OF_THE_IMAGE)
    for name in found.keys() - NOT_OF_THE_IMAGE - {"secrets"}:
        given = found[name]["environment"]
        assert given["SHOP_URL"] == "https://shop/", name
        assert given["ENVIRONMENT"] == "development", name


def test_secrets_of_the_env_file_stay_out_of_what_docker_inspect_shows(project: Path) -> None:
    (project / ".env").write_text("SECRET_KEY=hidden\nDATABASE_PASSWORD=hidden\n")
    found = services(project)
    assert "hidden" not in json.dumps({name: found[name] for name in found.keys() - {"secrets"}})


def test_the_recipe_leaves_out_the_servers_and_nothing_waits_for_them(project: Path) -> None:
    [recipe] = RECIPE.findall((ROOT / "docs/production-checklist.md").read_text())
    before = set(services(project))
    (project / "docker-compose.override.yml").write_text(recipe)
    found = services(project)
    assert before - set(found) == SERVERS
    for service in found.values():
        for name, needed in service.get("depends_on", {}).items():
            assert name in found or not needed["required"]
    assert found["preflight"]["depends_on"]["secrets"]["required"]
