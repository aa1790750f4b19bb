"""``wandb``: all keys unchanged. ``wandb-docs``: the keys that W&B's documentation lists, in exactly its spelling.

The tables are in :mod:`accelmetrics.schemas.catalogue.wandb`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from accelmetrics.dialects.contract import Number, Point
from accelmetrics.dialects.tables import FunctionDialect
from accelmetrics.schemas.catalogue import per_key, resolve
from accelmetrics.schemas.catalogue.wandb import is_documented, spelling
from accelmetrics.schemas.record import Record

_PLACEHOLDER = re.compile(r"\.\{(\w+)\}")


def _dialect(name: str, summary: str, is_wanted: Callable[[str], bool]) -> FunctionDialect:
    """Return a dialect of the keys that ``is_wanted`` accepts. Keys already have W&B's names."""

    def flat(record: Record) -> dict[str, Number]:
        return {key: value for key, value in record.snapshot.metrics.items() if is_wanted(key)}

    def points(record: Record) -> Iterator[Point]:
        """Yield the values with the number of the device, or the name of the disk or CPU, as a label: ``gpu.powerWatts{index="0"}``."""
        for key, value in flat(record).items():
            yield _point(key)._replace(value=value)

    return FunctionDialect(name, summary, points, flat)


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


WANDB = _dialect("wandb", "the keys of W&B's collector and documentation, and those that go beyond them", lambda _: True)
WANDB_DOCS = _dialect("wandb-docs", "the keys that W&B's documentation lists, under exactly its spelling", is_documented)
