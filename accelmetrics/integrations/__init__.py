"""Training frameworks: the core that all stand on, and one file for each."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

LIGHTNING = "ACCELMETRICS_LIGHTNING"
"""The variable that adds a callback to each Lightning ``Trainer``, when it is 1."""


def lightning_callbacks() -> list[Any]:
    """Return what the environment adds to a Lightning ``Trainer``. Each one asks, so nothing is loaded where it adds nothing."""
    if os.environ.get(LIGHTNING, "").strip() not in ("1", "true"):
        return []
    from accelmetrics.backends.guard import guarded, warn_user

    outcome = guarded(lambda: import_module("accelmetrics.integrations.lightning").AddedMonitor())
    if outcome.failure is not None:
        warn_user(f"{LIGHTNING} adds no callback: {outcome.failure.detail}")
    return [] if outcome.value is None else [outcome.value]
