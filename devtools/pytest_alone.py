"""Leaves the tests that promise a time for a run of their own, and says whether there are any."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--alone-later", metavar="FILE", help="made when tests were left for later")


@pytest.hookimpl(trylast=True)  # after -k has chosen
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    file = config.getoption("alone_later")
    later = [item for item in items if item.get_closest_marker("alone")] if file else []
    if later:
        Path(file).touch()
        items[:] = [item for item in items if item not in later]
        config.hook.pytest_deselected(items=later)
