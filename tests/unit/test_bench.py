"""The arithmetic of ``./dev bench``: CPU time from /proc, medians, ratios."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time

import pytest
from rich.console import Console

from devtools.bench.command import parse
from devtools.bench.cpu import TICKS, parse_stat, seconds_of_trees
from devtools.bench.report import Line, Sample, as_json, lines, table

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
