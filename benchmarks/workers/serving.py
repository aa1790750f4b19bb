"""What `accelmetrics serve --ui` adds to a reading that no browser asks for, and what one reading costs all browsers together.

Argument: readings. They are a second apart on a clock of their own.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections import deque

from accelmetrics.sampling.sampler import Sampler
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.views.node_view import node_view
from accelmetrics.views.page.documents import NodeDocuments, state_document


def main() -> None:
    """Print medians in seconds: of a reading, of taking it for the page, and of making the page's document."""
    readings = int(sys.argv[1])
    documents, sampling, taking, making = NodeDocuments(page=True), [], [], []
    alive: deque[Record] = deque(maxlen=4)  # else the one before would be taken apart while the next is taken
    with Sampler(["nvidia"]) as sampler:
        for second in range(readings):
            began = time.perf_counter()
            snapshot = sampler.sample()
            sampled = time.perf_counter()
            at = snapshot.time_ns + second * 10**9
            # As a monitor hands it on: a header and its numbers.
            record = Record(Snapshot.of(snapshot.header, snapshot.numbers, at, snapshot.backends, snapshot.processes))
            alive.append(record)
            given = time.perf_counter()
            documents.take(record)
            taken = time.perf_counter()
            json.dumps(state_document(node_view(record), second))
            sampling.append(sampled - began)
            taking.append(taken - given)
            making.append(time.perf_counter() - taken)
        found = {"reading": statistics.median(sampling), "taking": statistics.median(taking), "making": statistics.median(making)}
        sys.stdout.write(json.dumps({**found, "keys": len(snapshot.metrics)}) + "\n")


if __name__ == "__main__":
    main()
