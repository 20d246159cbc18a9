"""Who is woken by an alert finds out what to do."""

from __future__ import annotations

import yaml

from devtools.child import ROOT

RULES = ROOT / "config" / "prometheus" / "rules.yaml"


def alerts() -> list[dict[str, object]]:
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    rules: list[dict[str, object]] = group["rules"]
    return rules


def test_every_alert_has_a_section_of_its_own_and_names_it() -> None:
    sections = [
        line.removeprefix("## ")
        for line in (ROOT / "docs" / "operations.md").read_text().splitlines()
        if line.startswith("## ")
    ]
    for rule in alerts():
        name = str(rule["alert"])
        assert sections.count(name) == 1, name
        assert rule["annotations"]["runbook"] == f"docs/operations.md#{name.lower()}"  # type: ignore[index]


def test_every_alert_says_whether_it_wakes_somebody() -> None:
    assert {rule["labels"]["severity"] for rule in alerts()} == {"page", "ticket"}  # type: ignore[index]
