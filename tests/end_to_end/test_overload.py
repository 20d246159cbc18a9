"""Overload over HTTP: a crowd before a small room, with a real web server of two processes."""

from __future__ import annotations

import asyncio
import json
import statistics
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog
from django.db import connection

from tasks import sql
from tasks.admission import Sampler
from tasks.clients import Scope, create_client
from tasks.models import Job
from tasks.pace import Pace, tell
from tests.narrow_site import ROOM, TASKS_TOPOLOGY
from tests.processes import Web, wait_until, web

log = structlog.get_logger(__name__)

CROWD = 1000
OVERSHOOT = ROOM // 10

pytestmark = [pytest.mark.alone, pytest.mark.timeout(180), pytest.mark.django_db(transaction=True)]


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    at: float  # monotonic, seconds

    @property
    def retry_after_s(self) -> int:
        return int(self.headers["retry-after"])

    @property
    def server_ms(self) -> float:
        return float(self.headers["server-ms"])


@dataclass(frozen=True)
class Crowd:
    """Callers of one server, each with a connection and a key of its own."""

    port: int
    token: str

    def submit(self, numbers: range) -> dict[int, Answer]:
        """All at once."""

        async def together() -> dict[int, Answer]:
            answers = await asyncio.gather(*map(self.post, numbers))
            return dict(zip(numbers, answers, strict=True))

        return asyncio.run(together())

    def insist(self, numbers: range) -> dict[int, tuple[Answer, Answer | None]]:
        """All at once; each who is refused comes once more, when it was told to."""

        async def one(number: int) -> tuple[Answer, Answer | None]:
            first = await self.post(number)
            if first.status != 429:
                return first, None
            await asyncio.sleep(first.retry_after_s)
            return first, await self.post(number)

        async def together() -> dict[int, tuple[Answer, Answer | None]]:
            return dict(zip(numbers, await asyncio.gather(*map(one, numbers)), strict=True))

        return asyncio.run(together())

    async def post(self, number: int) -> Answer:
        body = json.dumps({"task": "t.keyed", "payload": {"order_id": number}}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(
            b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\n"
            b"Authorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s"
            % (self.token.encode(), len(body), body)
        )
        head = (await asyncio.wait_for(reader.read(), 60)).split(b"\r\n\r\n")[0].decode()
        writer.close()
        status, *lines = head.split("\r\n")
        headers = {name.lower(): value for name, _, value in (n.partition(": ") for n in lines)}
        return Answer(int(status.split()[1]), headers, time.monotonic())


@contextmanager
def site() -> Iterator[tuple[Web, Crowd]]:
    env = {"DJANGO_SETTINGS_MODULE": "tests.narrow_site", "WEB_PROCESSES": "2"}
    token = create_client("crowd", tenant="acme", scopes=[Scope.ENQUEUE])
    with web(env=env) as server:
        yield server, Crowd(int(server.url.rpartition(":")[2]), token)


def with_status(status: int, answers: dict[int, Answer]) -> dict[int, Answer]:
    return {number: answer for number, answer in answers.items() if answer.status == status}


def keys(answers: dict[int, Answer]) -> set[str]:
    return {f"keyed:{number}" for number in answers}


def say(what: str, answers: dict[int, Answer]) -> None:
    times = sorted(answer.server_ms for answer in answers.values())
    p50, p99 = statistics.median(times), times[len(times) * 99 // 100]
    log.info("answered", what=what, count=len(times), p50_ms=round(p50), p99_ms=round(p99))


def test_a_crowd_gets_the_room_there_is_and_the_rest_is_told_at_once_without_any_relay() -> None:
    with site() as (server, crowd):
        crowd.submit(range(1, 21))  # every thread has its connection
        before = memory_mib(server)
        answers = crowd.submit(range(21, 21 + CROWD))
        accepted, refused = with_status(202, answers), with_status(429, answers)
        say("accepted", accepted)
        say("refused", refused)
        assert len(accepted) + len(refused) == CROWD
        assert ROOM <= len(accepted) + 20 <= ROOM + OVERSHOOT
        rows = set(Job.objects.values_list("idempotency_key", flat=True))
        assert rows == keys(accepted) | keys(dict.fromkeys(range(1, 21)))  # type: ignore[arg-type]
        assert {answer.retry_after_s for answer in refused.values()} == {30}  # nothing drains
        assert statistics.median(answer.server_ms for answer in refused.values()) < 50

        again = crowd.submit(range(1, 21))
        assert {answer.status for answer in again.values()} == {200}
        for _ in range(3):
            crowd.submit(range(2000, 2000 + CROWD))
        log.info("memory", before_mib=before, after_mib=memory_mib(server))
        assert max(memory_mib(server)) < max(before) + 15


def test_whoever_was_refused_finds_room_when_it_was_told_to_come_again(settings: Any) -> None:
    settings.TASKS_TOPOLOGY = TASKS_TOPOLOGY
    with site() as (_, crowd), Drain(per_s=20) as drain:
        crowd.submit(range(ROOM))
        wait_until(lambda: drain.left < ROOM - 60, within_s=20, what="the pace is known")
        answers = crowd.insist(range(1000, 1600))
        first = {number: pair[0] for number, pair in answers.items()}
        accepted, refused = with_status(202, first), with_status(429, first)
        say("refused", refused)
        assert len(refused) > 200

        # As long as newcomers arrive they take what becomes free.
        all_here_at = max(answer.at for answer in first.values())
        back = [
            again.status == 202
            for once, again in answers.values()
            if again is not None and once.at + once.retry_after_s > all_here_at
        ]
        log.info("came_again", callers=len(back), found_room=sum(back))
        assert len(back) > 100
        assert sum(back) >= len(back) * 0.8

        # From the first refusal on each one needs a place that somebody has left.
        full_at = min(answer.at for answer in refused.values())
        left_at = drain.left_at[bisect_left(drain.left_at, full_at) :]
        came_at = [answer.at for answer in accepted.values() if answer.at > full_at]
        told_at = [answer.at + answer.retry_after_s for answer in refused.values()]
        pairs = zip(sorted(came_at + told_at), left_at, strict=False)
        waits = [(came - full_at, left - full_at) for came, left in pairs if came > full_at + 2]
        ratios = [told_s / true_s for told_s, true_s in waits]
        log.info("told_by_true", least=min(ratios), most=max(ratios), callers=len(ratios))
        assert len(waits) > 100
        # A Retry-After is whole seconds, rounded up. It can only know how fast places were left
        # until then: on a machine with much else to do the drain itself gets faster or slower.
        before, after = drain.speed(full_at - 5, full_at), drain.speed(full_at, left_at[-1])
        faster, slower = max(1.0, after / before), max(1.0, before / after)
        assert all(
            true_s / 2 / slower <= told_s <= 2 * faster * true_s + 1 for told_s, true_s in waits
        )


class Drain:
    """Takes jobs out of the queue at a known rate and measures, as relay and workers do."""

    def __init__(self, *, per_s: float) -> None:
        self.per_s = per_s
        self.left_at: list[float] = []
        self.left = ROOM
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Drain:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._thread.join()

    def speed(self, since: float, until: float) -> float:
        """Places left per second between these moments."""
        count = bisect_left(self.left_at, until) - bisect_left(self.left_at, since)
        return count / (until - since)

    def _run(self) -> None:
        sampler, pace = Sampler(), Pace()
        owed, last, told_at = 0.0, time.monotonic(), 0.0
        while not self._stopping.wait(0.05):
            now = time.monotonic()
            owed, last = min(owed + (now - last) * self.per_s, self.per_s), now
            took = self._take(int(owed))
            owed -= took
            pace.took(took, now)
            if now > told_at + 1:
                tell({"default": pace})
                told_at = now
            sampler.run()
        connection.close()

    def _take(self, count: int) -> int:
        took = sql.execute(
            "UPDATE tasks_job SET state = 'succeeded', finished_at = clock_timestamp() WHERE id IN"
            " (SELECT id FROM tasks_job WHERE state = 'queued' ORDER BY seq LIMIT %s)",
            [count],
        )
        self.left_at += [time.monotonic()] * took
        self.left = Job.objects.filter(state="queued").count()
        return took


def memory_mib(server: Web) -> list[int]:
    """What each process of the server keeps to itself."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    return [resident_kib(pid) // 1024 for pid in children]


def resident_kib(pid: str) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
