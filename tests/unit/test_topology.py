"""What follows from the numbers of a deployment, and what is refused in them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

from tasks import soundness
from tasks.soundness import faults
from tasks.topology import Broker, Database, Downstream, Queue, Service, Topology, days
from tests.sample_topology import TOPOLOGY

BANK = Downstream("bank", max_concurrency=20)


def one(**numbers: Any) -> Topology:
    return Topology.of([Queue("q", **numbers)])


def test_processes_share_the_limit_less_the_reserve() -> None:
    bank = Downstream("bank", max_concurrency=20, reserve=3)
    queue = Queue("q", downstream=bank, replicas=4)
    assert (queue.limit, queue.concurrency, queue.capacity) == (17, 4, 16)


def test_the_drain_of_work_that_resumes_is_short_and_of_other_work_its_time_limit() -> None:
    assert Queue("q", time_limit=300).drain_s == 20
    assert Queue("q", time_limit=7).drain_s == 7
    assert Queue("q", time_limit=300, resumable=False).drain_s == 300
    assert Queue("q", time_limit=300, drain=40).drain_s == 40
    assert Queue("q", time_limit=300, resumable=False).stop_grace_s == 310


def test_the_broker_outwaits_the_longest_run_and_its_stop() -> None:
    topology = Topology.of([Queue("a", time_limit=10), Queue("b", time_limit=600, drain=50)])
    assert topology.visibility_timeout_s == 600 + 60 + 60


def test_autoscaling_never_makes_more_slots_than_the_downstream_takes() -> None:
    for replicas in (1, 2, 3, 4, 7, 20):
        queue = Queue("q", downstream=BANK, replicas=replicas)
        assert queue.replicas_cap * queue.concurrency <= 20
        assert 1 <= queue.fewest_replicas <= queue.replicas <= queue.replicas_cap


def test_slots_are_threads_of_one_process() -> None:
    queue = Queue("q", slots=100)
    assert (queue.pool, queue.concurrency, queue.memory_mb) == ("threads", 100, 600)


def test_a_process_of_batches_has_two_connections() -> None:
    assert Queue("q", processes=4).connections_of_runs == 4
    assert Queue("q", processes=4, batch=50).connections_of_runs == 8
    assert Queue("q", slots=100, batch=50).connections_of_runs == 5


def test_connections_are_those_of_a_deploy_at_full_scale() -> None:
    topology = Topology.of(
        [Queue("q", downstream=BANK, replicas=4)],
        services=[Service("web", replicas=2, processes=2, threads=4, extra_connections=3)],
    )
    assert topology.connections == (4 + 1) * (5 + 2) + (2 + 1) * 2 * 7


def test_numbers_that_fit_together_have_no_fault() -> None:
    assert faults(TOPOLOGY) == []


# Each with the sentence that must be said, both numbers in it.
MISTAKES: dict[str, tuple[Callable[[], Topology], str]] = {
    "a grace shorter than the drain": (
        lambda: one(drain=20, stop_grace=25),
        r"queue q: the stop grace of 25 s ends before the drain of 20 s and the 10 s",
    ),
    "a drain longer than any run": (
        lambda: one(time_limit=30, drain=120),
        r"drain of 120 s is longer than any run, which ends at time_limit=30 s",
    ),
    "a lease that a hiccup ends": (lambda: one(lease=1), r"a lease of 1 s is below 3 s"),
    "a batch of nothing": (lambda: one(batch=0), r"batch=0 is not between 1 and 500"),
    "a batch beyond all bounds": (lambda: one(batch=501), r"batch=501 is not between 1 and 500"),
    "a batch that outlives its lease": (
        lambda: one(batch=50, lease=4),
        r"with batch=50 a lease of 4 s is below 5 s",
    ),
    "a batch of more coroutines than slots": (
        lambda: one(batch=50, slots=20),
        r"batch=50 is more than slots=20",
    ),
    "a tenant that may fill the queue": (
        lambda: one(max_waiting=100, max_waiting_per_tenant=500),
        r"max_waiting_per_tenant=500 is more than max_waiting=100",
    ),
    "a deploy without a worker": (
        lambda: one(replicas=1, surge=0),
        r"replicas=1 and surge=0 every deploy leaves it without a worker",
    ),
    "a cap below the replicas": (
        lambda: one(replicas=4, most_replicas=2),
        r"most_replicas=2 is less than replicas=4",
    ),
    "autoscaling beyond the downstream": (
        lambda: one(downstream=BANK, replicas=4, most_replicas=10),
        r"up to 10 replicas of 5 makes 50 slots; its downstream takes 20",
    ),
    "static slots above the limit": (
        lambda: one(downstream=BANK, replicas=4, processes=6),
        r"downstream bank: 24 static slots \(q 4 x 6\) are above its limit of 20",
    ),
    "two queues that each take the whole limit": (
        lambda: Topology.of([Queue("a", downstream=BANK), Queue("b", downstream=BANK)]),
        r"40 static slots \(a 1 x 20 \+ b 1 x 20\) are above its limit of 20",
    ),
    "a visibility timeout below the longest run": (
        lambda: Topology.of([Queue("q", time_limit=300)], broker=Broker(visibility_timeout=300)),
        r"visibility timeout of 300 s is not above the longest time limit and stop grace, 330 s",
    ),
    "a visibility timeout below the lease": (
        lambda: Topology.of([Queue("q", lease=900)], broker=Broker(visibility_timeout=600)),
        r"visibility timeout of 600 s is not above the lease of 900 s",
    ),
    "a broker too small for the window": (
        lambda: Topology.of([Queue("q", slots=2_000, replicas=10)], broker=Broker(memory_mb=64)),
        r"40000 slots need 160 MB for their messages, more than half of memory_mb=64",
    ),
    "keys that end before callers stop repeating": (
        lambda: one(retention=days(0.5)),
        r"keys are kept for 12:00:00 after the job, and callers may repeat .* for 1 day",
    ),
    "more connections than the database takes": (
        lambda: Topology.of(
            [Queue("q", processes=40)], database=Database(max_connections=100, reserved=15)
        ),
        r"needs 126 connections at once; of max_connections=100 85 are free \(15 reserved\)",
    ),
    "no relay": (
        lambda: Topology.of([Queue("q")], services=[Service("relay", replicas=0)]),
        r"relay: replicas=0, and without a relay nothing is dispatched",
    ),
    "more replicas than the downstream takes calls": (
        lambda: one(downstream=BANK, replicas=30),
        r"30 replicas share a limit of 20; use fewer replicas",
    ),
    "a reserve that leaves nothing": (
        lambda: one(downstream=Downstream("bank", max_concurrency=5, reserve=5)),
        r"a reserve of 5 leaves nothing of max_concurrency=5",
    ),
    "two kinds of worker at once": (
        lambda: one(processes=4, slots=100),
        r"processes=4 and slots=100 are two kinds of worker",
    ),
    "no replica": (lambda: one(replicas=0), r"replicas=0; with less than 1 nothing runs"),
    "a limit of nothing": (
        lambda: one(downstream=Downstream("bank", max_concurrency=0)),
        r"max_concurrency must be at least 1",
    ),
    "a queue declared twice": (
        lambda: Topology.of([Queue("mail"), Queue("mail", replicas=3)]),
        r"queue mail: declared twice.*make one of them, or give each a name of its own",
    ),
    "a service declared twice": (
        lambda: Topology.of([Queue("q")], services=[Service("web"), Service("web", replicas=2)]),
        r"service web: declared twice",
    ),
    "one downstream with two limits": (
        lambda: Topology.of(
            [
                Queue("a", downstream=BANK),
                Queue("b", downstream=Downstream("bank", max_concurrency=6)),
            ]
        ),
        r"downstream bank: queue a says max_concurrency=20, queue b says max_concurrency=6.*once",
    ),
    "a rate that is none": (
        lambda: one(downstream=Downstream("bank", rate="50 per second")),
        r"rate '50 per second' is not like '50/s'",
    ),
}


def test_a_downstream_written_out_twice_alike_is_one() -> None:
    again = Downstream("bank", max_concurrency=20)
    topology = Topology.of([Queue("a", downstream=BANK), Queue("b", downstream=again)])
    assert topology.calling(BANK) == ["a", "b"]


def test_every_rule_about_numbers_has_a_mistake_that_breaks_it() -> None:
    rules = set(re.findall(r"topology\.E\d+", inspect.getsource(soundness)))
    broken = {fault.id for plant, _ in MISTAKES.values() for fault in found_in(plant)}
    assert broken == rules
    assert len(MISTAKES) >= 20


def found_in(plant: Callable[[], Topology]) -> list[soundness.Fault]:
    try:
        return faults(plant())
    except ValueError:
        return []


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_numbers_is_refused_with_both_and_a_cure(mistake: str) -> None:
    plant, sentence = MISTAKES[mistake]
    assert re.search(sentence, "\n".join(said(plant)))


def said(plant: Callable[[], Topology]) -> list[str]:
    """Either the number is refused where it is read, or where it meets the others."""
    try:
        found = faults(plant())
    except ValueError as error:
        return [str(error)]
    assert all(fault.hint and fault.id.startswith("topology.E") for fault in found)
    return [fault.sentence for fault in found]
