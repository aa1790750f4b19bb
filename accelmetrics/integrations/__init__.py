"""Callbacks and loggers for training frameworks: a common core, and a file for each framework."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

LIGHTNING = "ACCELMETRICS_LIGHTNING"
"""The variable that adds a callback to each Lightning ``Trainer`` if it is 1."""


def lightning_callbacks() -> list[Any]:
    """Return the callbacks for a Lightning ``Trainer``: one with ``ACCELMETRICS_LIGHTNING=1`` in the environment, else none."""
    # Every Trainer calls this, also in programs that never use accelmetrics. So nothing is imported without the variable.
    if os.environ.get(LIGHTNING, "").strip() not in ("1", "true"):
        return []
    from accelmetrics.backends.guard import guarded, warn_user

    outcome = guarded(lambda: import_module("accelmetrics.integrations.lightning").AddedMonitor())
    if outcome.failure is not None:
        warn_user(f"{LIGHTNING} adds no callback: {outcome.failure.detail}")
    return [] if outcome.value is None else [outcome.value]
