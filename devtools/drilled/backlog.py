"""``python -m devtools.drilled.backlog TENANT NUMBER SECONDS``: jobs that a tenant has waiting."""

from __future__ import annotations

import sys

import django


def main() -> None:
    from devtools.drilled.tasks import bare
    from tasks.enqueue import Item, enqueue_many

    tenant, number, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    items = (Item({"number": n, "seconds": seconds}, tenant=tenant) for n in range(number))
    enqueue_many(bare, items)


if __name__ == "__main__":
    django.setup()
    main()
