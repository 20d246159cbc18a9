"""Every number of the deployment. Change one here; what follows from it is derived."""

from tasks.topology import Downstream, Queue, Topology

# The bank accepts 20 connections from us and closes the 21st.
BANK = Downstream("bank", max_concurrency=20)

DEFAULT = Queue("default", processes=2, time_limit=300, drain=20)
PAYMENTS = Queue("payments", downstream=BANK, replicas=4, time_limit=60, drain=20)
WEBHOOKS = Queue("webhooks", replicas=2, slots=100, time_limit=30)
BULK = Queue("bulk", replicas=2, processes=2, time_limit=300)

TOPOLOGY = Topology.of([DEFAULT, PAYMENTS, WEBHOOKS, BULK])
