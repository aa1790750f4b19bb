"""Limits of options, the same wherever an option is given."""

from __future__ import annotations

MAX_SECONDS = 1_000_000.0
"""About eleven days: all platforms' clocks accept that."""
SHORTEST_INTERVAL, LONGEST_INTERVAL = 0.01, 86_400
"""Limits, in seconds, of the interval between two readings of a monitor."""
