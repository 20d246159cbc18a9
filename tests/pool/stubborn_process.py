"""A program with work that nothing can interrupt. TERM must end it within its deadline."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time

from tasks.pool import Token, WorkerPool


async def swallows_cancellation(token: Token) -> None:
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            continue


async def blocks_a_thread(token: Token) -> None:
    await asyncio.to_thread(time.sleep, 60)


async def main(drain_s: float) -> None:
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    pool = WorkerPool(slots=2, capacity=2, name="stubborn")
    await pool.submit("swallows", swallows_cancellation)
    await pool.submit("blocks", blocks_a_thread)
    await pool.submit("waits", swallows_cancellation)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await told.wait()
    report = await pool.drain(drain_s)
    sys.stdout.write(" ".join((*report.discarded, *report.interrupted, *report.unstoppable)) + "\n")
    sys.stdout.flush()
    # asyncio.run would wait for both of them for ever.
    os._exit(0 if report.is_clean else 3)


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1])))
