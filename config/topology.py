"""Every number of the deployment. Change one here; what follows from it is derived.

``./dev topology`` shows what follows, ``./dev topology --write`` puts it into the manifests.
"""

from tasks.topology import Broker, Database, Downstream, Queue, Service, Topology, days

# The bank accepts 20 connections from us and closes the 21st.
BANK = Downstream("bank", max_concurrency=20)

# Whatever calls nothing limited. 300 s: what takes longer is better cut into several jobs.
DEFAULT = Queue("default", processes=2, time_limit=300)
# 60 s: the bank answers within 5 s or never.
PAYMENTS = Queue(
    "payments", downstream=BANK, replicas=4, time_limit=60, retention=days(7),
    # At half a second a call the bank takes 40 in a second: 5,000 are two minutes. A customer who
    # waits longer than that should hear it at once.
    max_waiting=5_000,
    # Two tenants in trouble leave a fifth of it to all the others.
    max_waiting_per_tenant=2_000,
)  # fmt: skip
# 30 s: a receiver that has not answered by then is tried again later.
# They mostly wait: 100 at once in one process, on one event loop.
WEBHOOKS = Queue("webhooks", replicas=2, slots=100, time_limit=30)
# Work that computes: as many processes as the machine has cores to give.
# Most of it is short: up to 50 jobs of a task share a message.
BULK = Queue("bulk", replicas=2, processes=2, batch=50, time_limit=300)

# A request writes one row, so the threads of one process go far. Beside theirs it has connections
# of the readiness probe, the metrics and the watch.
WEB = Service("web", replicas=2, threads=4, drain=20, extra_connections=3)
# Two, so that one may stop. One connection more listens.
RELAY = Service("relay", replicas=2, drain=5, extra_connections=1)
# Looks at workers through the broker; asks the database only to revoke.
FLOWER = Service("flower", surge=0, extra_connections=0)

TOPOLOGY = Topology.of(
    [DEFAULT, PAYMENTS, WEBHOOKS, BULK],
    services=[WEB, RELAY, FLOWER],
    # 15 for operators, backups and monitoring; each connection costs the server up to 10 MB.
    database=Database(max_connections=200, reserved=15, memory_mb=1024),
    # The broker holds two messages of half a kilobyte per slot, and replies.
    broker=Broker(memory_mb=256),
)
