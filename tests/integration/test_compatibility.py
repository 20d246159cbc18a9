"""docs/compatibility.md tells the truth: each of its rows has a test, each such test a row."""

from __future__ import annotations

from collections import Counter
from types import ModuleType

from tests.habits import TABLE, rows_of_the_table
from tests.integration import (
    test_calls,
    test_control,
    test_eager,
    test_flower,
    test_links,
    test_observability,
    test_on_a_worker,
    test_results,
    test_retries,
    test_worker_options,
)

MODULES: tuple[ModuleType, ...] = (
    test_calls, test_control, test_eager, test_flower, test_links, test_observability,
    test_on_a_worker, test_results, test_retries, test_worker_options,
)  # fmt: skip


def habits_under_test() -> set[str]:
    return {
        row
        for module in MODULES
        for name, test in vars(module).items()
        if name.startswith("test_")
        for row in getattr(test, "habits", ())
    }


def test_every_row_has_a_test_and_every_such_test_a_row() -> None:
    rows = rows_of_the_table()
    assert len(rows) > 50
    assert [row for row, times in Counter(rows).items() if times > 1] == []
    assert set(rows) == habits_under_test()


def test_every_row_is_kept_mapped_or_refused_with_the_replacement() -> None:
    for line in TABLE.read_text().splitlines():
        if not line.startswith("| `"):
            continue
        cells = line.replace(r"\|", "").split("|")
        habit, here, what = (cell.strip() for cell in cells[1:4])
        assert here in {"kept", "mapped", "refused"}, habit
        assert here != "refused" or what, habit
