"""``python -m devtools.drilled.backlog TENANT NUMBER SECONDS``: jobs that a tenant has waiting.

Or ``cancel TENANT``: those that still wait are not needed any more.
"""

from __future__ import annotations

import sys

import django

ACTOR = "the drill"


def main() -> None:
    from devtools.drilled.tasks import bare
    from tasks import ledger
    from tasks.enqueue import Item, enqueue_many
    from tasks.models import Job

    if sys.argv[1] == "cancel":
        waiting = Job.objects.filter(tenant=sys.argv[2], finished_at=None)
        for job_id in waiting.values_list("id", flat=True):
            ledger.cancel(job_id, actor=ACTOR)
        return
    tenant, number, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    items = (Item({"number": n, "seconds": seconds}, tenant=tenant) for n in range(number))
    enqueue_many(bare, items)


if __name__ == "__main__":
    django.setup()
    main()
