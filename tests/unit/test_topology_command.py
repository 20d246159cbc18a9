"""``./dev topology``: one number changed in one place, and everything follows."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from devtools.child import ROOT
from devtools.topology.command import problems
from devtools.topology.files import write
from devtools.topology.formats import as_env, as_helm_values, as_json
from devtools.topology.rendered import FILES
from devtools.topology.table import shown
from tasks.topology import Downstream, Queue, Topology
from tests.sample_topology import TOPOLOGY

PARTS = ("config", "devtools", "orders", "project", "tasks", "manage.py", "pyproject.toml")
MANIFESTS = ("Dockerfile", "docker-compose.yml", "config")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the repository that may be changed, with numbers that nobody else changes."""
    root = copied(tmp_path / "checkout", {*PARTS, *MANIFESTS})
    shutil.copy(ROOT / "tests/sample_topology.py", root / "config/topology.py")
    write(root, TOPOLOGY)
    return root


def copied(to: Path, names: set[str]) -> Path:
    to.mkdir()
    for name in filter(lambda name: (ROOT / name).exists(), names):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, to / name)
    return to


def run(checkout: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *argv], cwd=checkout, env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def topology(checkout: Path, *options: str) -> tuple[int, str]:
    done = run(checkout, "-m", "devtools", "topology", *options)
    return done.returncode, done.stdout + done.stderr


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) >= 1
    path.write_text(text.replace(old, new, 1))


def compose(checkout: Path) -> dict[str, dict[str, object]]:
    return yaml.safe_load((checkout / "docker-compose.yml").read_text())["services"]


def kubernetes(checkout: Path, file: str, kind: str, name: str) -> dict[str, object]:
    documents = yaml.safe_load_all((checkout / "config/kubernetes" / file).read_text())
    [found] = [d for d in documents if (d["kind"], d["metadata"]["name"]) == (kind, name)]
    return found["spec"]


# What a worker and the relay make of the numbers, asked in a process that reads them afresh.
ASK = """
import json, types
from config.topology import TOPOLOGY
from tasks import dispatch, worker_options
from django.conf import settings
settings.configure(TASKS_TOPOLOGY=TOPOLOGY)
conf = types.SimpleNamespace(worker_concurrency=None, task_time_limit=None)
worker_options.derive(conf, ["payments"], given={})
queue, load = TOPOLOGY.queue("payments"), dispatch.Load()
room = dispatch.room(queue, dispatch.Slots(capacity=queue.capacity), load, 0)
print(json.dumps([conf.worker_concurrency, queue.limit, room]))
"""


def asked(checkout: Path) -> list[int]:
    answer: list[int] = json.loads(run(checkout, "-c", ASK).stdout.splitlines()[-1])
    return answer


def test_half_the_bank_is_one_number_and_everything_follows(checkout: Path) -> None:
    assert topology(checkout, "--check")[0] == 0
    assert asked(checkout) == [5, 20, 20]
    before = compose(checkout)["worker-payments"]["deploy"]["resources"]  # type: ignore[index]
    replace(checkout / "config/topology.py", "max_concurrency=20", "max_concurrency=10")

    code, text = topology(checkout, "--check")
    assert code == 1
    assert "docker-compose.yml" in text
    assert "'resources: {limits: {memory: 1200M}}' stands there" in text
    assert "'resources: {limits: {memory: 600M}}' follows from config/topology.py" in text
    assert "config/kubernetes/autoscaling/autoscalers.yaml" in text
    assert "Run: ./dev topology --write" in text

    assert topology(checkout, "--write")[0] == 0
    code, text = topology(checkout, "--check")
    assert code == 0
    assert "note: downstream bank takes 10 at once, and 8 slots call it (payments 4 x 2)." in text
    assert "replicas=5 would use all of it (5 x 2)" in text
    after = compose(checkout)["worker-payments"]["deploy"]["resources"]  # type: ignore[index]
    assert (before, after) == ({"limits": {"memory": "1200M"}}, {"limits": {"memory": "600M"}})
    autoscaler = kubernetes(
        checkout, "autoscaling/autoscalers.yaml", "HorizontalPodAutoscaler", "worker-payments"
    )
    assert autoscaler["maxReplicas"] == 5
    assert asked(checkout) == [2, 10, 10]


def test_a_new_queue_gets_a_service_a_deployment_and_an_alert(checkout: Path) -> None:
    file = checkout / "config/topology.py"
    replace(file, "[DEFAULT, ", "[Queue('mail_out', time_limit=20, acceptable_wait_s=7), DEFAULT, ")
    code, text = topology(checkout, "--check")
    assert code == 1
    blocks = {(file, name) for file, renders in FILES.items() for name in renders}
    assert len(text.splitlines()) <= len(blocks)
    assert "nothing stands there, 'worker-mail-out:' follows from config/topology.py. In" in text
    assert topology(checkout, "--write")[0] == 0
    service = compose(checkout)["worker-mail-out"]
    assert service["command"][:6] == ["celery", "-A", "project", "worker", "-Q", "mail_out"]
    assert kubernetes(checkout, "base/workers.yaml", "Deployment", "worker-mail-out")
    assert '{queue="mail_out"} > 35' in (checkout / "config/prometheus/rules.yaml").read_text()


def test_writing_twice_changes_nothing(checkout: Path) -> None:
    assert "Nothing to write." in topology(checkout, "--write")[1]


def test_numbers_that_cannot_be_read_are_one_sentence(checkout: Path) -> None:
    replace(checkout / "config/topology.py", "max_concurrency=20", "max_concurrency=2")
    code, text = topology(checkout, "--check")
    assert code == 1
    assert "4 replicas share a limit of 2; use fewer replicas or a higher max_concurrency" in text
    assert "Traceback" not in text


def test_numbers_that_clash_fail_the_check_and_are_not_written(checkout: Path) -> None:
    replace(checkout / "config/topology.py", "replicas=4,", "replicas=4, processes=6,")
    for option in ("--check", "--write"):
        code, text = topology(checkout, option)
        assert code == 1
        assert "topology.E010  downstream bank: 24 static slots (payments 4 x 6)" in text


# File, what somebody changed by hand, and what is said of it.
HANDS = {
    "a shorter grace in compose": (
        "docker-compose.yml", "stop_grace_period: 30s", "stop_grace_period: 10s",
        "'stop_grace_period: 10s' stands there, 'stop_grace_period: 30s' follows",
    ),
    "more replicas on Kubernetes": (
        "config/kubernetes/base/workers.yaml", "replicas: 4", "replicas: 40",
        "'replicas: 40' stands there, 'replicas: 4' follows",
    ),
    "a shorter grace on Kubernetes": (
        "config/kubernetes/base/relay.yaml", "PeriodSeconds: 15", "PeriodSeconds: 5",
        "'terminationGracePeriodSeconds: 5' stands there",
    ),
    "fewer connections": (
        "config/postgresql.conf", "max_connections = 200", "max_connections = 50",
        "'max_connections = 50' stands there, 'max_connections = 200' follows",
    ),
    "less memory for the broker": (
        "config/redis.conf", "maxmemory 256mb", "maxmemory 16mb", "'maxmemory 16mb' stands there",
    ),
    "a later alert": (
        "config/prometheus/rules.yaml", "> 300", "> 30000", "'expr: tasks_oldest_due_age_seconds",
    ),
    "a block removed": (
        "config/redis.conf", "# topology: begin memory", "", "the block 'memory' is missing",
    ),
    "a block nobody renders": (
        "config/redis.conf", "# topology: begin memory", "# topology: begin money",
        "nobody renders the block 'money'",
    ),
    "a shell as process 1 of the image": (
        "Dockerfile", 'CMD ["gunicorn", "-c"', 'CMD gunicorn -c "',
        "makes a shell process 1",
    ),
    "a shell as process 1 of a service": (
        "docker-compose.yml", "command: [python, manage.py, relay]",
        'command: [sh, -c, "python manage.py relay"]', "makes a shell process 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("hand", HANDS)
def test_what_somebody_changed_by_hand_is_named_with_what_follows(
    hand: str, tmp_path: Path
) -> None:
    file, old, new, sentence = HANDS[hand]
    root = copied(tmp_path / "manifests", set(MANIFESTS))
    write(root, TOPOLOGY)
    assert problems(root, TOPOLOGY) == []
    replace(root / file, old, new)
    said = "\n".join(problems(root, TOPOLOGY))
    assert sentence in said
    assert file in said


def test_no_number_of_a_worker_is_typed_outside_of_a_block() -> None:
    """The command of a worker names its queue, and nothing that follows from it."""
    for name, service in compose(ROOT).items():
        if name.startswith("worker-"):
            assert not {"-c", "--concurrency", "-P", "--time-limit"} & set(service["command"])  # type: ignore[call-overload]


def test_the_table_shows_the_arithmetic() -> None:
    text = " ".join(shown(TOPOLOGY).split())
    assert "processes per replica 5 20 / 4 replicas, rounded down" in text
    assert "stop grace 30 s 20 s drain + 10 s to give back and exit" in text
    assert "memory per replica 1200 MB (5 processes + their parent) x 200 MB" in text
    assert "visibility timeout 390 s 330 s longest time limit + stop grace, + 60 s" in text


def table(queue: Queue) -> str:
    return " ".join(shown(Topology.of([queue])).split())


def test_a_downstream_with_a_rate_alone_is_shown_with_its_rate_and_its_breaker() -> None:
    text = table(Queue("mail", downstream=Downstream("post", rate="2/s")))
    assert "it calls nothing limited" not in text
    assert "limit none post: any number of calls at once" in text
    assert "rate 2/s post: calls, over all queues and relays" in text
    assert "breaker 50% so many of at least 20 runs in 30 s fail" in text
    deaf = table(Queue("mail", downstream=Downstream("post", rate="2/s", breaker=None)))
    assert "breaker none post is called however often it fails" in deaf


def test_what_clashes_is_written_and_said_to_clash(checkout: Path) -> None:
    replace(checkout / "config/topology.py", "max_connections=200", "max_connections=60")
    code, said = topology(checkout, "--write")
    assert code == 1
    assert "wrote config/postgresql.conf" in said
    assert "follow from config/topology.py, but its numbers clash:" in said
    [clash] = [line for line in said.splitlines() if "topology.E030" in line]
    assert "Raise it: Database(max_connections=" in clash
    assert "where most are taken (payments" in clash


def test_the_container_of_the_broker_is_said_to_be_twice_its_memory() -> None:
    text = " ".join(shown(TOPOLOGY).split())
    assert "its container gets twice as much, because Redis rewrites" in text
    assert "512 broker (2 x 256);" in text


def test_a_number_that_is_the_default_is_told_from_another() -> None:
    assert "time limit 300 s as by default" in table(Queue("q"))
    assert "time limit 60 s given" in table(Queue("q", time_limit=60))
    assert "keys kept 7 d as by default" in table(Queue("q"))
    assert "lease 30 s given" in table(Queue("q", lease=30))


def test_memory_is_added_up() -> None:
    text = " ".join(shown(TOPOLOGY).split())
    workers = 1 * 600 + 4 * 1200 + 2 * 600 + 2 * 600
    services = 2 * 200 + 2 * 200 + 200
    total = workers + services + 1024 + 512
    assert f"memory in all {total} MB {workers} workers + {services} services + 1024" in text


@pytest.mark.parametrize(
    ("queue", "is_noted"),
    [
        (Queue("q", Downstream("d", 10), replicas=4), True),
        (Queue("q", Downstream("d", 20), replicas=4), False),
        (Queue("q", Downstream("d", 19), replicas=6), False),
        (Queue("q", Downstream("d", 10), replicas=4, processes=1), False),
        (Queue("q", Downstream("d", rate="2/s")), False),
    ],
)
def test_slots_that_leave_much_of_a_limit_unused_are_noted(queue: Queue, is_noted: bool) -> None:
    assert ("would use all of it" in table(queue)) == is_noted


def test_the_cap_of_autoscaling_says_what_it_comes_from(checkout: Path) -> None:
    text = (checkout / "config/kubernetes/autoscaling/autoscalers.yaml").read_text()
    assert "# The hard cap: 4 x 5 slots; its downstream takes 20 at once." in text
    assert "# The hard cap: 4 x 100 slots; no downstream limits it." in text


def test_each_format_is_read_by_its_reader() -> None:
    parsed = json.loads(as_json(TOPOLOGY))
    assert parsed["queues"]["payments"]["concurrency"] == 5
    values = yaml.safe_load(as_helm_values(TOPOLOGY))
    assert values["queues"]["payments"]["stopGraceS"] == 30
    lines = dict(line.split("=", 1) for line in as_env(TOPOLOGY).splitlines())
    assert lines["PAYMENTS_REPLICAS"] == "4"
    assert lines["SERVERS_VISIBILITY_TIMEOUT_S"] == "390"


def test_every_rendered_file_is_in_the_repository() -> None:
    assert all((ROOT / file).exists() for file in FILES)
