"""Numbers for tests of the product: those of config/topology.py may be changed by anybody.

Written as that file is, because some tests put it in its place.
"""

from tasks.topology import Broker, Database, Downstream, Queue, Service, Topology

BANK = Downstream("bank", max_concurrency=20)

DEFAULT = Queue("default", processes=2, time_limit=300)
PAYMENTS = Queue(
    "payments", downstream=BANK, replicas=4, time_limit=60,
    max_waiting=5_000, max_waiting_per_tenant=2_000,
)  # fmt: skip
WEBHOOKS = Queue("webhooks", replicas=2, slots=100, time_limit=30)
BULK = Queue("bulk", replicas=2, processes=2, time_limit=300)

WEB = Service("web", replicas=2, threads=4, drain=20, extra_connections=3)
RELAY = Service("relay", replicas=2, drain=5, extra_connections=1)
FLOWER = Service("flower", surge=0, extra_connections=0)

TOPOLOGY = Topology.of(
    [DEFAULT, PAYMENTS, WEBHOOKS, BULK],
    services=[WEB, RELAY, FLOWER],
    database=Database(max_connections=200, reserved=15, memory_mb=1024),
    broker=Broker(memory_mb=256),
)
