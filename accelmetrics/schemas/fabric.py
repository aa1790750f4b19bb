"""Faults of a GPU's connection to the fabric of NVLink switches, in words."""

from __future__ import annotations

from collections.abc import Mapping

UNHEALTHY = 2
"""``fabricHealthSummary`` of a GPU that is not reliable. 1 is healthy, 3 is limited capacity."""
RIGHT = 1
"""``fabricHealth.incorrectConfiguration`` of a correctly configured GPU."""
INCORRECT = {
    2: "wrong GUID of the system",
    3: "wrong serial number of the chassis",
    4: "no partition",
    5: "too few NVLinks",
    6: "incompatible firmware",
    7: "invalid location",
    8: "invalid state of the GPU",
}
"""Words for the other values of ``fabricHealth.incorrectConfiguration``."""

RECOVERIES = {
    "fabricHealth.routeRecovery": "a route is being recovered",
    "fabricHealth.accessTimeoutRecovery": "it recovers from an access that timed out",
}
"""Temporary states. They are reported only if nothing else explains that the GPU is unhealthy."""


def fabric_faults(values: Mapping[str, float]) -> list[str]:
    """Return the faults that keep a GPU from using the fabric, from its metrics.

    They are a faulty route and a wrong configuration; without these, temporary states of an unhealthy GPU.
    """
    faults = ["route unhealthy"] if values.get("fabricHealth.routeUnhealthy") else []
    configuration = values.get("fabricHealth.incorrectConfiguration", RIGHT)
    if configuration != RIGHT:
        faults.append(INCORRECT.get(int(configuration), f"incorrect configuration {configuration:g}"))
    if not faults and values.get("fabricHealthSummary") == UNHEALTHY:
        faults += [words for name, words in RECOVERIES.items() if values.get(name)] or ["unhealthy"]
    return faults
