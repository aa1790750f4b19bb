"""A snapshot for people: devices side by side, the host, what is missing, how the sources fared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from accelmetrics.cli.layout import GAP, aligned, clipped, packed
from accelmetrics.cli.units import quantity, seconds
from accelmetrics.schemas.catalogue import SECTIONS, resolve
from accelmetrics.schemas.metric import device_key
from accelmetrics.schemas.vitals import printable

if TYPE_CHECKING:
    from accelmetrics.schemas.metric import Metric
    from accelmetrics.schemas.snapshot import Snapshot

OTHER = ("", "Other")
"""The section of keys that the catalogue does not have: a plug-in's."""
INDENT = "  "

SectionName = tuple[str, str]


class _Cell(NamedTuple):
    """One value: in which section, of which device (empty for the host), under which name."""

    section: SectionName
    device: str
    name: str
    text: str


def render(snapshot: Snapshot, width: int) -> str:
    """The whole table."""
    home = {row: (section.family, section.title) for section in SECTIONS for row in map(_identity, section.rows)}
    devices = [place.key for place in snapshot.identities]
    cells = [cell for key, value in snapshot.metrics.items() if (cell := _cell(home, devices, key, value)) is not None]
    order = [*dict.fromkeys(home.values()), OTHER]
    parts = [
        [f"{snapshot.hostname}  {snapshot.timestamp}"],
        _devices(snapshot, width),
        *(_section(name, [cell for cell in cells if cell.section == name], devices, width) for name in order),
        _missing(snapshot, width),
        _sources(snapshot, width),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _identity(row: Metric) -> str:
    return row.key


def _cell(home: dict[str, SectionName], devices: Sequence[str], key: str, value: float) -> _Cell | None:
    """Where a value stands; nowhere if it is another spelling of one that does."""
    found = resolve(key)
    if found is None:
        device = next((device for device in devices if key.startswith(f"{device}.")), "")
        return _Cell(OTHER, device, key[len(device) + 1 :] if device else key, quantity(value, "1"))
    if found.alias:
        return None
    row = found.row
    section = home.get(row.key, OTHER)
    if not row.device_part:
        return _Cell(section, "", key, quantity(value, row.unit))
    return _Cell(section, found.device, row.name.replace("{link}", found.instance), quantity(value, row.unit))


def _devices(snapshot: Snapshot, width: int) -> list[str]:
    if not snapshot.identities:
        return ["No devices. `accelmetrics doctor` says why."]
    places = [(place.key, place.identity) for place in snapshot.identities]
    rows = [(key, printable(identity.name or identity.vendor), printable(identity.uuid)) for key, identity in places]
    return [clipped_end(line, width) for line in aligned(rows)]


def clipped_end(line: str, width: int) -> str:
    """A line that is laid out already, cut where the terminal ends."""
    return line if len(line) <= width else line[: max(1, width - 1)] + "…"


def _section(name: SectionName, cells: list[_Cell], devices: Sequence[str], width: int) -> list[str]:
    if not cells:
        return []
    title = ": ".join(filter(None, name))
    host = [(cell.name, cell.text) for cell in cells if not cell.device]
    lines = packed(host, width, INDENT)
    return [title, *lines, *_grid([cell for cell in cells if cell.device], devices, width)]


def _grid(cells: list[_Cell], devices: Sequence[str], width: int) -> list[str]:
    """Names downwards, devices across; in as many blocks as the width asks for."""
    if not cells:
        return []
    texts = {(cell.name, cell.device): cell.text for cell in cells}
    names = list(dict.fromkeys(cell.name for cell in cells))
    seen = {cell.device for cell in cells}
    shown = [device for device in devices if device in seen]
    across = _columns_that_fit(names, cells, width)
    lines: list[str] = []
    for start in range(0, len(shown), across):
        block = shown[start : start + across]
        rows = [["", *block], *([name, *(texts.get((name, device), "-") for device in block)] for name in names)]
        lines += aligned(rows, INDENT, numeric=True)
    return lines


def _columns_that_fit(names: list[str], cells: list[_Cell], width: int) -> int:
    label = max(map(len, names)) + len(INDENT)
    column = max(max(len(cell.text), len(cell.device)) for cell in cells) + GAP
    return max(1, (width - label) // column)


def _missing(snapshot: Snapshot, width: int) -> list[str]:
    """By reason: how many keys, and which as far as there is room."""
    keys: dict[str, list[str]] = {}
    for key, why in snapshot.unavailable.items():
        keys.setdefault(str(why.reason), []).append(_of_any(key) if len(snapshot.identities) > 1 else key)
    if not keys:
        return []
    rows = [(reason, str(len(listed)), ", ".join(dict.fromkeys(listed))) for reason, listed in keys.items()]
    return ["Not available", *(clipped_end(line, width) for line in aligned(rows, INDENT))]


def _of_any(key: str) -> str:
    """``gpu.*.fanSpeed`` of ``gpu.0.fanSpeed``; other keys as they are."""
    found = device_key(key)
    return key if found is None or found.process else f"{found.kind}.*.{key.split('.', 2)[2]}"


def _sources(snapshot: Snapshot, width: int) -> list[str]:
    rows = []
    for status in snapshot.backends:
        read = f"{status.source}, {seconds(status.duration_seconds)}" if status.source else ""
        rows.append((status.name, status.status, clipped("; ".join(filter(None, (read, status.detail))), width)))
    return ["Sources", *(clipped_end(line, width) for line in aligned(rows, INDENT))] if rows else []
