"""Calls the task at a steady pace and prints the id of each call.

ESTATE=plain python -m devtools.drilled.estate.caller FIRST COUNT PER_S
"""

from __future__ import annotations

import json
import random
import sys
import time

import django

USUAL_S = (0.005, 0.04)
# Longer than a lease, so that it must be renewed whoever published the message.
LONG_S = (6.0, 9.0)
LONG_EACH = 40


def main(first: int, number: int, per_s: float) -> None:
    django.setup()
    from devtools.drilled.estate.tasks import capture

    draw = random.Random(first)
    began = time.monotonic()
    for n in range(number):
        time.sleep(max(0.0, began + n / per_s - time.monotonic()))
        seconds = draw.uniform(*(LONG_S if n % LONG_EACH == LONG_EACH // 2 else USUAL_S))
        print(json.dumps({"number": first + n, "id": capture.delay(first + n, seconds).id}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
