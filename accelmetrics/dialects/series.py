"""What dialects of labelled series have in common: whose a key is, its value in a base unit, a series spelled as one word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from accelmetrics.dialects.contract import Number
from accelmetrics.schemas.catalogue import KeyMatch
from accelmetrics.schemas.metric import Metric


class Scale(NamedTuple):
    """How a value becomes one of the base unit.

    Attributes:
        divisor: What it is divided by where its unit is smaller than the base unit; dividing gives 0.7 for 70 %.
        factor: What it is multiplied by otherwise.
    """

    divisor: int = 1
    factor: float = 1.0

    def of(self, value: Number) -> Number:
        """The value in the base unit; unchanged where that is its own."""
        if self.divisor != 1:
            return value / self.divisor
        return value if self.factor == 1 else value * self.factor


def scale_of(row: Metric) -> Scale:
    """That of a catalogue's row. Factors below 1 are inverses of whole numbers (100, 1,000,000)."""
    return Scale(round(1 / row.factor) if row.factor < 1 else 1, row.factor)


def device_of(sighting: KeyMatch) -> str:
    """The key of the device that a metric belongs to, empty for the host's. PyTorch's numbers are those of ``gpu.{i}``."""
    head = sighting.row.key.partition(".")[0]
    if head == "torch":
        return f"gpu.{sighting.instance}"
    return f"{head}.{sighting.instance}" if sighting.row.device_part else ""


def filled(label: str, sighting: KeyMatch) -> str:
    """The value of a label, which may be a placeholder of the key."""
    if label == "{link}":
        return sighting.link
    return sighting.instance if label.startswith("{") else label


def series(name: str, labels: Mapping[str, str]) -> str:
    """A name with labels, as PromQL writes it: ``gpu_utilization_percent{gpu_index="0"}``."""
    written = ",".join(f'{label}="{_escaped(value)}"' for label, value in labels.items())
    return f"{name}{{{written}}}" if written else name


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
