"""``python -m devtools.drilled.backlog NUMBER SECONDS TENANT...``: jobs that each has waiting."""

from __future__ import annotations

import sys

import django


def main() -> None:
    from devtools.drilled.tasks import bare
    from tasks.enqueue import Item, enqueue_many

    number, seconds, tenants = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    enqueue_many(
        bare,
        (
            Item({"number": n, "seconds": seconds}, tenant=tenant)
            for n in range(number)
            for tenant in tenants
        ),
    )


if __name__ == "__main__":
    django.setup()
    main()
