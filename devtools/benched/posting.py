"""Posts jobs to the HTTP interface from a few connections and prints what it saw, as JSON.

python -m devtools.benched.posting http://127.0.0.1:8000 TOKEN 4 1000        # as fast as it goes
python -m devtools.benched.posting http://127.0.0.1:8000 TOKEN 8 1000 125.0  # so many a second
"""

from __future__ import annotations

import http.client
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import quantiles
from urllib.parse import urlsplit
from uuid import uuid4

TASK = "devtools.benched.tasks.noop"
BODY = json.dumps({"task": TASK, "payload": {}})
ANSWER_WITHIN_S = 10.0
ACCEPTED = 202


def main(argv: list[str]) -> None:
    url, token, connections, number, *rate = argv
    each = int(number) // int(connections)
    beat_s = int(connections) / float(rate[0]) if rate else 0.0
    began = time.perf_counter()

    def call(place: int) -> list[float]:
        # Each begins at its own part of the beat.
        return post(url, token, each, began + beat_s * place / int(connections), beat_s)

    with ThreadPoolExecutor(int(connections)) as pool:
        taken_s = [s for each_of in pool.map(call, range(int(connections))) for s in each_of]
    seconds = time.perf_counter() - began
    cuts = quantiles(taken_s, n=100, method="inclusive")
    print(
        json.dumps(
            {
                "per_s": len(taken_s) / seconds,
                "p50_ms": cuts[49] * 1000,
                "p99_ms": cuts[98] * 1000,
            }
        )
    )


def post(url: str, token: str, number: int, begins_at: float, beat_s: float) -> list[float]:
    """Seconds of each call: with a beat from the moment at which it should have been sent."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=ANSWER_WITHIN_S)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    taken_s = []
    for n in range(number):
        due_at = begins_at + n * beat_s if beat_s else time.perf_counter()
        time.sleep(max(0.0, due_at - time.perf_counter()))
        connection.request("POST", "/api/jobs", BODY, {**headers, "Idempotency-Key": str(uuid4())})
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != ACCEPTED:
            raise RuntimeError(f"{answer.status} {text[:200]!r}")
        taken_s.append(time.perf_counter() - due_at)
    return taken_s


if __name__ == "__main__":
    main(sys.argv[1:])
