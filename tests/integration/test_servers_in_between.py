"""The ledger behind a transaction pooler, and a broker that speaks only TLS."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from django.conf import settings

from devtools.child import ROOT
from devtools.ports import LOOPBACK, free_port
from tasks.enqueue import enqueue_many
from tasks.models import Job
from tasks.states import State
from tests import surviving_tasks
from tests.broker import Corner, Trace, trace_table
from tests.processes import Process, database_url, relay, running, wait_until, worker

pytestmark = [pytest.mark.timeout(110), pytest.mark.django_db(transaction=True)]

UNPACKED = ROOT / ".var" / "tools"
JOBS = 30


@pytest.fixture
def trace() -> Iterator[Trace]:
    with trace_table() as trace:
        yield trace


@pytest.fixture
def corner() -> Iterator[Corner]:
    corner = Corner()
    yield corner
    corner.clear()


def all_succeed(env: dict[str, str]) -> None:
    """Jobs that run between a relay and a worker which know only these addresses."""
    with worker("default", "-I", "tests.surviving_tasks", env=env), relay(env=env):
        enqueue_many(surviving_tasks.slow, [{"note": str(n), "seconds": 0} for n in range(JOBS)])
        wait_until(lambda: Job.objects.filter(state=State.SUCCEEDED).count() == JOBS, within_s=30)


# --- PgBouncer ----------------------------------------------------------------------------


def pgbouncer() -> str | None:
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path=UNPACKED / "usr/sbin")


@contextmanager
def pooled(directory: Path) -> Iterator[str]:
    """The address of a transaction pooler before the tests' database."""
    database, port = settings.DATABASES["default"], free_port()
    (directory / "pgbouncer.ini").write_text(
        "[databases]\n"
        f"* = host={database['HOST']} port={database['PORT']} user={database['USER']}"
        f" password={database['PASSWORD'] or 'none'}\n"
        "[pgbouncer]\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        "auth_type = any\npool_mode = transaction\ndefault_pool_size = 4\n"
    )
    argv = [str(pgbouncer()), str(directory / "pgbouncer.ini")]
    if os.geteuid() == 0:
        argv[1:1] = ["-u", "nobody"]
    libraries = str(UNPACKED / "usr/lib" / f"{os.uname().machine}-linux-gnu")
    env = {**os.environ, "LD_LIBRARY_PATH": libraries}
    with running(Process("pgbouncer", argv, env)) as process:
        process.wait_for("listening on 127.0.0.1")
        yield database_url(port=port)


@pytest.mark.skipif(
    pgbouncer() is None and not os.environ.get("CI"), reason="PgBouncer is not here (.ci/run)"
)
@pytest.mark.parametrize("hints", ["off", "direct"])
@pytest.mark.usefixtures("trace")
def test_behind_a_transaction_pooler_every_job_runs(
    hints: str, corner: Corner, tmp_path: Path
) -> None:
    with pooled(tmp_path) as address:
        env = {**corner.env, "DATABASE_URL": address, "DB_PREPARED_STATEMENTS": "off"}
        if hints == "direct":
            all_succeed({**env, "LEDGER_DIRECT_URL": database_url()})
        else:
            all_succeed({**env, "LEDGER_NOTIFY": "off"})


# --- TLS ----------------------------------------------------------------------------------


def certificate_in(directory: Path) -> tuple[Path, Path]:
    certificate, key = directory / "cert.pem", directory / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "1", "-subj", "/CN=broker", "-addext"),
            *("subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)),
        ],
        check=True, capture_output=True, timeout=30,
    )  # fmt: skip
    return certificate, key


@contextmanager
def redis_with_tls(directory: Path) -> Iterator[tuple[str, Path]]:
    """TLS in front of the tests' Redis, as managed ones have it, and who vouches for it."""
    certificate, key = certificate_in(directory)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    plain, port, loop = urlsplit(os.environ["BROKER_URL"]), free_port(), asyncio.new_event_loop()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind = await asyncio.open_connection(plain.hostname, plain.port)
        await asyncio.gather(copy(reader, behind[1]), copy(behind[0], writer))

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    start = asyncio.start_server(serve, LOOPBACK, port, ssl=context)
    asyncio.run_coroutine_threadsafe(start, loop).result(timeout=10)
    try:
        login = plain.netloc.rpartition("@")[0]
        yield f"rediss://{login}@{LOOPBACK}:{port}{plain.path}", certificate
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


@pytest.mark.usefixtures("trace")
def test_over_tls_every_job_runs(corner: Corner, tmp_path: Path) -> None:
    with redis_with_tls(tmp_path) as (address, certificate):
        all_succeed({**corner.env, "BROKER_URL": f"{address}?ssl_ca_certs={certificate}"})


def test_a_broker_whose_certificate_nobody_vouches_for_gets_nothing(tmp_path: Path) -> None:
    with (
        redis_with_tls(tmp_path) as (address, _),
        worker("default", env={"BROKER_URL": address}, ready=False) as process,
    ):
        process.wait_for("CERTIFICATE_VERIFY_FAILED|certificate verify failed")
