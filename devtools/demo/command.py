"""The story of the demo from the command line to the exit code."""

from __future__ import annotations

import argparse
import os
import secrets
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

from config.topology import BANK, PAYMENTS
from devtools.child import ROOT
from devtools.demo import ledger_view
from devtools.demo.comparison import Books, Evidence, differences
from devtools.demo.orders_file import BadFile, Order, read_orders
from devtools.demo.posting import Posting, posting
from devtools.demo.progress import display
from devtools.demo.report import show, show_verdict
from devtools.given_servers import refuse_silent_servers
from devtools.interrupts import StopRequested, acknowledged
from devtools.open_bank import open_bank
from devtools.ports import port_number
from devtools.stack import Ports, Stack, Worker

SHIPPED_ORDERS = ROOT / "orders" / "sample_orders.csv"
BANK_LIMIT = BANK.max_concurrency or 20
# Two more than the bank allows: the limit must be held by the relay, not by a lack of processes.
PROCESSES_PER_WORKER = BANK_LIMIT // 2 + 1
LOOK_EVERY_S = 0.25
# Longer than any wait that is meant to be: a bank that never answers, a backoff, a lease.
STALLED_AFTER_S = 60.0
CREATE_ADMIN = """
import os
from django.contrib.auth import get_user_model
get_user_model().objects.create_superuser(
    os.environ["ADMIN_NAME"], "", os.environ["ADMIN_PASSWORD"]
)
"""


@dataclass(frozen=True)
class Access:
    """Made for this run, so that it disturbs nothing in a database it was given."""

    tenant: str
    token: str
    admin: str
    password: str


def main(argv: Sequence[str]) -> int:
    """0: the bank's books agree with the ledger. 1: they do not. 2: the orders cannot be read."""
    given = parse(argv)
    console = Console(highlight=False)
    try:
        orders = read_orders(given.orders)
    except BadFile as problem:
        Console(stderr=True, highlight=False).print(
            f"error: {problem}", style="red", markup=False, soft_wrap=True
        )
        return 2
    refuse_silent_servers(os.environ)
    return run(given, console, orders)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./dev demo",
        description="Posts orders twice and out of order, captures each payment at a bank that"
        " fails in every way a bank can, and compares the ledger with the bank's own books.",
    )
    parser.add_argument(
        "--orders",
        type=Path,
        default=SHIPPED_ORDERS,
        metavar="FILE",
        help="CSV with the columns order_id, amount_cents, card",
    )
    parser.add_argument("--keep", action="store_true", help="stay up afterwards, until Ctrl-C")
    parser.add_argument("--seed", type=int, default=1, help="of the bank's faults and the order")
    parser.add_argument(
        "--bank-forgets-keys",
        action="store_true",
        help="the bank charges for every call: see what the comparison finds",
    )
    for server in ("web", "flower", "postgres", "redis"):
        parser.add_argument(
            f"--port-{server}", type=port_number, metavar="N", help="any free one if not given"
        )
    return parser.parse_args(argv)


def run(given: argparse.Namespace, console: Console, orders: Sequence[Order]) -> int:
    began = time.monotonic()
    console.print("Starting PostgreSQL, Redis, the web server, a relay, two workers and Flower ...")
    bank = open_bank(BANK_LIMIT, seed=given.seed, forgets_keys=given.bank_forgets_keys)
    with bank as bank_url, stack_for(given, bank_url) as stack:
        access = grant_access(stack)
        console.print(f"Ready after {time.monotonic() - began:.1f} s.")
        show_addresses(console, stack, access)
        seen, seconds = capture_all(console, stack, access, orders, given.seed, bank_url)
        show(console, seen, seconds)
        found = differences(seen)
        show_verdict(console, seen, found)
        if given.keep:
            stay(console, stack)
        else:
            console.print("Stopping everything, who takes work in first ...")
    return 1 if found else 0


# --- the processes --------------------------------------------------------------------------


def stack_for(given: argparse.Namespace, bank_url: str) -> Stack:
    processes = ("-c", str(PROCESSES_PER_WORKER))
    return Stack(
        workers=[Worker(PAYMENTS.name, f"{PAYMENTS.name}-{n}", processes) for n in (1, 2)],
        flower=True,
        environment={"BANK_URL": bank_url},
        ports=Ports(
            web=given.port_web,
            flower=given.port_flower,
            postgres=given.port_postgres,
            redis=given.port_redis,
        ),
    )


def grant_access(stack: Stack) -> Access:
    """An API client and an admin login; the slow part, twice a Django start, side by side."""
    name = f"demo-{secrets.token_hex(4)}"
    password = secrets.token_urlsafe(9)
    login = {"ADMIN_NAME": name, "ADMIN_PASSWORD": password}
    with ThreadPoolExecutor(2) as pool, acknowledged():
        client = pool.submit(
            stack.manage, "api_client", name, "--tenant", name, "--scopes", "enqueue,read"
        )
        admin = pool.submit(stack.manage, "shell", "-v", "0", "-c", CREATE_ADMIN, env=login)
        admin.result()
        return Access(tenant=name, token=client.result().strip(), admin=name, password=password)


def show_addresses(console: Console, stack: Stack, access: Access) -> None:
    flower_login = stack.env["FLOWER_BASIC_AUTH"].replace(":", " / ", 1)
    rows = {
        "Admin": f"{stack.web_url}/admin/  {access.admin} / {access.password}",
        "API docs": f"{stack.web_url}/api/docs",
        "Flower": f"{stack.flower_url}/  {flower_login}",
    }
    for name, address in rows.items():
        console.print(f"  {name:<9} {address}", markup=False, soft_wrap=True)


def stay(console: Console, stack: Stack) -> None:
    """Until a signal; a process that dies meanwhile is an error."""
    console.print("Everything stays up (--keep). Ctrl-C ends it.")
    try:
        while True:
            stack.supervisor.raise_for_failed()
            time.sleep(0.5)
    except StopRequested as stop:
        stop.acknowledge()


# --- the work -------------------------------------------------------------------------------


def capture_all(
    console: Console,
    stack: Stack,
    access: Access,
    orders: Sequence[Order],
    seed: int,
    bank_url: str,
) -> tuple[Evidence, float]:
    """Posts everything and waits for every outcome; what was seen, and the seconds it took."""
    with closing(stack.connect()) as connection:
        refuse_foreign_jobs(connection)
        began = time.monotonic()
        with posting(stack.web_url, access.token, orders, seed=seed) as calls, acknowledged():
            watch(console, stack, connection, access.tenant, calls, len(orders))
        seconds = time.monotonic() - began
        jobs = ledger_view.jobs_of(connection, access.tenant)
    return Evidence(orders, calls.answers, jobs, books_of(bank_url)), seconds


def refuse_foreign_jobs(connection: Any) -> None:
    """In a database that was given to us: its jobs would call our bank, and we would count them."""
    waiting = ledger_view.unfinished(connection)
    if waiting:
        raise SystemExit(
            f"error: the database in DATABASE_URL has {waiting} unfinished jobs;"
            " unset it, or let them finish first"
        )


def watch(
    console: Console,
    stack: Stack,
    connection: Any,
    tenant: str,
    calls: Posting,
    orders: int,
) -> None:
    """Returns when every job has ended, or when nothing has moved for too long."""
    before, moved_at = (0, ledger_view.Tally()), time.monotonic()
    with display(console, calls=calls.total, orders=orders) as progress:
        while time.monotonic() - moved_at < STALLED_AFTER_S:
            stack.supervisor.raise_for_failed()
            now = (len(calls.answers), ledger_view.count(connection, tenant))
            progress.update(*now)
            if now[0] == calls.total and now[1].finished >= now[1].accepted:
                return
            if now != before:
                before, moved_at = now, time.monotonic()
            time.sleep(LOOK_EVERY_S)
    console.print(f"[red]Nothing has moved for {STALLED_AFTER_S:.0f} s: giving up.[/]")


def books_of(bank_url: str) -> Books:
    books: Books = httpx.get(f"{bank_url}/books", timeout=30.0).json()
    return books
