"""What is wrong with a GPU's place in the fabric of NVLink switches, in words."""

from __future__ import annotations

from collections.abc import Mapping

UNHEALTHY = 2
"""``fabricHealthSummary`` of a GPU that cannot be relied on; 1 is healthy, 3 limited capacity."""
RIGHT = 1
"""``fabricHealth.incorrectConfiguration`` of a GPU that is configured as it should be."""
INCORRECT = {
    2: "wrong GUID of the system",
    3: "wrong serial number of the chassis",
    4: "no partition",
    5: "too few NVLinks",
    6: "incompatible firmware",
    7: "invalid location",
    8: "invalid state of the GPU",
}
"""By ``fabricHealth.incorrectConfiguration``."""

RECOVERIES = {
    "fabricHealth.routeRecovery": "a route is being recovered",
    "fabricHealth.accessTimeoutRecovery": "it recovers from an access that timed out",
}
"""What may pass by itself, and is told where nothing else makes the GPU unhealthy."""


def fabric_faults(values: Mapping[str, float]) -> list[str]:
    """Return what keeps a GPU from using the fabric, by its metrics: a faulty route, a wrong configuration, or no more than that."""
    faults = ["route unhealthy"] if values.get("fabricHealth.routeUnhealthy") else []
    configuration = values.get("fabricHealth.incorrectConfiguration", RIGHT)
    if configuration != RIGHT:
        faults.append(INCORRECT.get(int(configuration), f"incorrect configuration {configuration:g}"))
    if not faults and values.get("fabricHealthSummary") == UNHEALTHY:
        faults += [words for name, words in RECOVERIES.items() if values.get(name)] or ["unhealthy"]
    return faults
