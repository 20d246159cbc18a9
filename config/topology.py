"""Every number of the deployment. Change one here; what follows from it is derived."""

from tasks.topology import Downstream, Queue, Topology

# The bank accepts 20 connections from us and closes the 21st.
BANK = Downstream("bank", max_concurrency=20)

DEFAULT = Queue("default", processes=2, time_limit=300, drain=20)
PAYMENTS = Queue(
    "payments", downstream=BANK, replicas=4, time_limit=60, drain=20,
    # At half a second a call the bank takes 40 in a second: 5,000 are two minutes. A customer who
    # waits longer than that should hear it at once.
    max_waiting=5_000,
    # Two tenants in trouble leave a fifth of it to all the others.
    max_waiting_per_tenant=2_000,
)  # fmt: skip
WEBHOOKS = Queue("webhooks", replicas=2, processes=4, time_limit=30)
BULK = Queue("bulk", replicas=2, processes=2, time_limit=300)

TOPOLOGY = Topology.of([DEFAULT, PAYMENTS, WEBHOOKS, BULK])
