"""A labelled series spelled as one word."""

from __future__ import annotations

from collections.abc import Mapping


def series(name: str, labels: Mapping[str, str]) -> str:
    """A name with labels, as PromQL writes it: ``gpu_utilization_percent{gpu_index="0"}``."""
    written = ",".join(f'{label}="{_escaped(value)}"' for label, value in labels.items())
    return f"{name}{{{written}}}" if written else name


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
