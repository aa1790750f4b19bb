"""``wandb``: the keys as they are. ``wandb-docs``: those that W&B's documentation lists, under exactly its spelling.

The tables are in :mod:`accelmetrics.schemas.catalogue.wandb`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from accelmetrics.dialects.contract import Dialect, Number, Point
from accelmetrics.schemas.catalogue import per_key, resolve
from accelmetrics.schemas.catalogue.wandb import is_documented, spelling
from accelmetrics.schemas.record import Record

_PLACEHOLDER = re.compile(r"\.\{(\w+)\}")


class Wandb(Dialect):
    """The snapshot's keys, all of them or those that pass.

    Args:
        name: As it is chosen.
        summary: Whose names these are.
        documented_only: Whether only documented spellings pass.
    """

    def __init__(self, name: str, summary: str, documented_only: bool = False) -> None:
        self.name = name
        self.summary = summary
        self._documented_only = documented_only

    def flat(self, record: Record) -> dict[str, Number]:
        """Give the metrics, which have these names already."""
        metrics = record.snapshot.metrics
        return {key: value for key, value in metrics.items() if not self._documented_only or is_documented(key)}

    def points(self, record: Record) -> Iterator[Point]:
        """Give the same with the number of the device, or the name of the disk or CPU, as a label: ``gpu.powerWatts`` of ``gpu.0``."""
        for key, value in self.flat(record).items():
            yield _point(key)._replace(value=value)


@per_key
def _point(key: str) -> Point:
    found = resolve(key)
    if found is None:
        return Point(key, 0)
    template = spelling(key, found)
    number = found.device.partition(".")[2]
    instances = iter((number, found.instance) if number and not template.startswith("torch.") else (found.instance,))
    labels = {"index" if placeholder == "i" else placeholder: next(instances) for placeholder in _PLACEHOLDER.findall(template)}
    return Point(_PLACEHOLDER.sub("", template), 0, labels, found.row.kind, found.row.unit, found.row.meaning)


WANDB = Wandb("wandb", "the keys of W&B's collector and documentation, and those that go beyond them")
WANDB_DOCS = Wandb("wandb-docs", "the keys that W&B's documentation lists, under exactly its spelling", documented_only=True)
