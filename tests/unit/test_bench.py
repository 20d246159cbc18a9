"""The arithmetic of ``./dev bench``: CPU time from /proc, medians, ratios."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time

import pytest
from rich.console import Console

from devtools.bench.command import MEASURES, parse, wanted
from devtools.bench.cpu import TICKS, megabytes_of_trees, parse_stat, seconds_of_trees
from devtools.bench.disk import flush_ms
from devtools.bench.goals import GOALS
from devtools.bench.report import MEANING, Line, Sample, about_the_disk, as_json, lines, table

BURN = "import time; end = time.process_time() + {s}\nwhile time.process_time() < end: pass"


def sample(number: int, system: str, **figures: float) -> Sample:
    return Sample(number, "drain", system, figures)


def test_cpu_time_is_own_and_buried_childrens_whatever_the_name():
    fields = ["S", *("0" for _ in range(10)), "100", "20", "3", "4", "0"]
    assert parse_stat(f"77 (a) b (c) {' '.join(fields)}") == 127 / TICKS


def test_a_process_that_is_gone_has_used_nothing():
    child = subprocess.Popen(["true"])
    child.wait()
    assert seconds_of_trees([child.pid]) == 0.0


def test_the_time_of_living_and_dead_children_is_counted():
    burn = BURN.format(s=0.2)
    script = (
        "import subprocess, sys, time\n"
        f"subprocess.run([sys.executable, '-c', {burn!r}])\n"
        f"subprocess.Popen([sys.executable, '-c', {burn + chr(10) + 'time.sleep(60)'!r}])\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 20
        while (used := seconds_of_trees([parent.pid])) < 0.4 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert used >= 0.4
    finally:
        os.killpg(parent.pid, 9)
        parent.wait()


def test_a_line_is_the_median_of_the_rounds_and_the_ratio_to_plain_celery():
    samples = [
        *(sample(n, "plain", jobs_per_s=rate) for n, rate in enumerate((100, 400, 200))),
        *(sample(n, "celeriac", jobs_per_s=rate) for n, rate in enumerate((50, 300, 1))),
    ]
    (line,) = lines(samples)
    assert (line.plain, line.celeriac, line.ratio) == (200, 50, 0.25)


def test_nothing_measured_on_one_side_has_no_ratio():
    assert Line("drain", "cpu_ms_per_job", 0.0, 3.0).ratio is None


def test_the_table_names_figures_in_words():
    samples = [
        sample(1, name, jobs_per_s=1234.5, cpu_ms_per_job=2.5) for name in ("plain", "celeriac")
    ]
    console = Console(file=io.StringIO(), width=120)
    console.print(table(lines(samples), rounds=1))
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "CPU s per 1,000 jobs" in shown
    assert "1,234" in shown
    assert "1.00 x" in shown


def test_what_only_celeriac_does_has_no_ratio_and_may_have_a_goal():
    (line,) = lines([Sample(1, "http", "celeriac", {"requests_per_s": 260.0})])
    assert (line.plain, line.ratio, line.is_met) == (None, None, True)


@pytest.mark.parametrize(("rate", "is_met"), [(60.0, False), (80.0, True)])
def test_a_goal_against_plain_celery_is_met_by_the_ratio(rate: float, is_met: bool):
    samples = [sample(1, "plain", jobs_per_s=100.0), sample(1, "celeriac", jobs_per_s=rate)]
    (line,) = lines(samples)
    assert line.is_met is is_met


def test_every_goal_is_about_something_that_is_measured():
    for measure, figure in GOALS:
        assert measure in MEASURES
        assert figure in MEANING


def test_what_is_no_comparison_is_measured_once_unless_it_is_named():
    assert "idle" in wanted([], 1)
    assert "idle" not in wanted([], 2)
    assert list(wanted(["idle"], 2)) == ["idle"]


def test_the_goals_sizes_are_asked_for_with_big():
    assert parse(["--big"]).rows == 1_000_000
    assert parse([]).rows < 100_000
    assert parse(["--big", "--rows", "7"]).rows == 7
    assert parse(["--only", "dispatch"]).rows == 1_000_000


def test_the_dispatch_is_measured_alone():
    with pytest.raises(SystemExit):
        parse(["--only", "dispatch", "--only", "drain"])


def test_memory_is_of_the_children_too():
    script = (
        "import subprocess, sys, time\n"
        "held = b'x' * 30_000_000\n"
        "inner = 'import time; held = b\"x\" * 30_000_000; print(1, flush=True); time.sleep(60)'\n"
        "child = subprocess.Popen([sys.executable, '-c', inner], stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert parent.stdout is not None
        parent.stdout.readline()
        assert megabytes_of_trees([parent.pid]) > 60
    finally:
        os.killpg(parent.pid, 9)
        parent.wait()
    assert megabytes_of_trees([parent.pid]) == 0


def test_the_json_has_every_sample_and_the_medians():
    samples = [sample(1, name, jobs_per_s=10.0) for name in ("plain", "celeriac")]
    written = as_json(samples, {"jobs": 5})
    assert written["about"] == {"jobs": 5}
    assert written["medians"][0]["ratio"] == 1.0
    assert len(written["samples"]) == 2


def test_an_unknown_measure_is_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        parse(["--only", "speed"])
    assert "drain" in capsys.readouterr().err


def test_what_a_flush_of_the_disk_takes_is_said_beside_the_figures() -> None:
    assert flush_ms() > 0
    samples = [
        Sample(1, "drain", name, {}, ms) for name, ms in (("plain", 4.0), ("celeriac", 0.07))
    ]
    assert "0.07 to 4.00 ms" in about_the_disk(samples)
