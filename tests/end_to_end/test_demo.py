"""``./dev demo`` as a stranger runs it, on servers that it starts itself, with fewer orders."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from devtools.bank import Fault, fault_of
from devtools.bench.cpu import children_of
from devtools.child import ROOT
from devtools.demo.command import SHIPPED_ORDERS
from devtools.demo.comparison import is_good
from devtools.demo.orders_file import Order, read_orders

ORDERS = 40
WITHIN_S = 200
CHARGED_UNSEEN = (Fault.HANGS_UP, Fault.SILENT)

pytestmark = pytest.mark.timeout(WITHIN_S + 40)


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    """The first of the shipped ones."""
    path = tmp_path / "orders.csv"
    path.write_text("".join(SHIPPED_ORDERS.read_text().splitlines(keepends=True)[: ORDERS + 1]))
    return path


@contextmanager
def demo(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    # Empty addresses ask for servers of its own: those of the test run are others' to count on.
    environment = {**os.environ, "DATABASE_URL": "", "BROKER_URL": "", "COLUMNS": "200"}
    with subprocess.Popen(
        [sys.executable, "-m", "devtools", "demo", *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def run(*arguments: str) -> tuple[int, str]:
    with demo(*arguments) as process:
        output, _ = process.communicate(timeout=WITHIN_S)
        return process.returncode, output


def charged_unseen(orders: list[Order], seed: int) -> list[int]:
    """Good orders whose first call is charged without an answer: a second call must follow."""
    return [
        o.order_id for o in orders if is_good(o) and fault_of(seed, o.order_id, 1) in CHARGED_UNSEEN
    ]


def test_the_demo_ends_well_and_tells_what_happened(orders: Path):
    code, output = run("--orders", str(orders))
    assert code == 0, output
    assert "The bank's books agree." in output
    good = sum(map(is_good, read_orders(orders)))
    assert f"{good} good orders, exactly one charge each" in output
    assert f"{ORDERS - good} bad orders, no charge" in output
    for address in ("/admin/", "/api/docs", "Flower"):
        assert address in output


def test_a_bank_that_charges_every_call_ends_in_an_error_and_the_rows(orders: Path):
    seed = next(n for n in range(100) if charged_unseen(read_orders(orders), n))
    code, output = run("--orders", str(orders), "--seed", str(seed), "--bank-forgets-keys")
    assert code == 1, output
    assert "charged 2 times" in output
    assert str(charged_unseen(read_orders(orders), seed)[0]) in output


def test_ctrl_c_ends_everything_at_once(orders: Path):
    with demo("--orders", str(orders), "--keep") as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "Ready after" in line:
                break
        children = descendants(process.pid)
        assert len(children) > 5
        os.killpg(process.pid, signal.SIGINT)
        assert process.stdout.read().count("Stopping ...") == 1
        assert process.wait(60) == 128 + signal.SIGINT
        assert until_gone(children) == []


def descendants(pid: int) -> list[int]:
    children = children_of(pid)
    return [*children, *(far for child in children for far in descendants(child))]


def until_gone(pids: list[int], within_s: float = 10.0) -> list[int]:
    deadline = time.monotonic() + within_s
    while (left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.1)
    return left
