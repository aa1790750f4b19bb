"""The most and the least that options take, wherever they are given."""

from __future__ import annotations

MAX_SECONDS = 1_000_000.0
"""Eleven days: within what every platform's clocks take."""
SHORTEST_INTERVAL, LONGEST_INTERVAL = 0.01, 86_400
"""Seconds between two readings of a monitor."""
