"""Times dispatches of the relay against the given ledger: a JSON line for each line it reads.

echo 20 | python -m devtools.benched.dispatching

Each is committed, and as many jobs as it sent come to the same tenants before the next one.
"""

from __future__ import annotations

import json
import sys
import time
from statistics import median

import django

from devtools.benched.settings import QUEUE
from tasks import dispatch, ledger, sql
from tasks.turns import Rounds
from tasks.wiring import topology

JOBS = 20
REPLACE = (
    "WITH gone AS (DELETE FROM tasks_job WHERE id = ANY(%s) RETURNING *)"
    " INSERT INTO tasks_job (id, task, queue, tenant, idempotency_key, fingerprint, payload)"
    " SELECT gen_random_uuid(), task, queue, tenant, gen_random_uuid()::text, '', payload FROM gone"
)


def main() -> None:
    """A line is a number of dispatches; the answer their median."""
    rounds = Rounds()
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            seconds.append(one_pass(rounds))
        print(json.dumps({"ms": median(seconds) * 1000}), flush=True)


def one_pass(rounds: Rounds) -> float:
    """Seconds, of what ``Relay.run_once`` does. What was sent is gone then, and as much comes."""
    slots = dispatch.Slots(JOBS // dispatch.MESSAGES_PER_SLOT, JOBS)
    began = time.perf_counter()
    assert (QUEUE, "") in ledger.lanes_with_due_jobs()
    jobs = dispatch.dispatch(topology(), topology().queue(QUEUE), slots, rounds=rounds)
    taken = time.perf_counter() - began
    assert len(jobs) == JOBS
    sql.execute(REPLACE, [[job.id for job in jobs]])
    return taken


if __name__ == "__main__":
    django.setup()
    main()
