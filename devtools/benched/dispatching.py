"""Times dispatches of the relay against the given ledger: a JSON line for each line it reads.

echo 20 | python -m devtools.benched.dispatching

Each is rolled back: the next one finds what this one found.
"""

from __future__ import annotations

import json
import sys
import time
from statistics import median

import django
from django.db import transaction

from devtools.benched.settings import QUEUE
from tasks import dispatch, ledger
from tasks.turns import Rounds
from tasks.wiring import topology

JOBS = 20


def main() -> None:
    """A line is a number of dispatches; the answer their median."""
    rounds = Rounds()
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            seconds.append(one_pass(rounds))
        print(json.dumps({"ms": median(seconds) * 1000}), flush=True)


def one_pass(rounds: Rounds) -> float:
    """Seconds. As in ``Relay.run_once``."""
    slots = dispatch.Slots(JOBS // dispatch.MESSAGES_PER_SLOT, JOBS)
    with transaction.atomic():
        began = time.perf_counter()
        assert (QUEUE, "") in ledger.lanes_with_due_jobs()
        jobs = dispatch.dispatch(topology(), topology().queue(QUEUE), slots, rounds=rounds)
        taken = time.perf_counter() - began
        transaction.set_rollback(True)
    assert len(jobs) == JOBS
    return taken


if __name__ == "__main__":
    django.setup()
    main()
