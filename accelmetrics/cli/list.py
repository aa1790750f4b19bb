"""``accelmetrics list``: the devices, with identity, memory and driver."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator, Sequence

from accelmetrics.cli import options as arguments
from accelmetrics.cli.output import PLAIN_WIDTH, Stdout, say
from accelmetrics.schemas.errors import Unavailable
from accelmetrics.schemas.snapshot import Snapshot, plain
from accelmetrics.schemas.text import aligned, cells, clipped, hanging, printable, quantity
from accelmetrics.schemas.topology import SupportedClocks

HEAD = ("KEY", "VENDOR", "NAME", "UUID", "PCI", "MEMORY", "DRIVER")
SPARED = ("DRIVER", "VENDOR", "PCI")
"""Columns that a narrow screen omits, in this order."""
MOST_CLOCKS_SHOWN = 8
EXAMPLES = """\
  accelmetrics list
  accelmetrics list --json | jq -r '.[].uuid'
  accelmetrics list --backends nvidia
  accelmetrics list --clocks
      which clocks each device can be set to
  CUDA_VISIBLE_DEVICES=2,0 accelmetrics list --visible
      devices that a program sees, with its own numbers"""
OPTIONS: arguments.Groups = {
    "": {
        "--clocks": {"action": "store_true", "help": "print the clocks that each device can be set to"},
        "--json": {"action": "store_true", "help": "print a JSON array: the entries of `devices` in the document of dump --json"},
    },
    arguments.READ: arguments.only("--backends", "--gpus", "--visible", "--amd-source", "--timeout"),
}


def run(options: Namespace, out: Stdout) -> int:
    """Print the devices. Report missing devices and failing sources on standard error."""
    from accelmetrics.sampling.sampler import Sampler

    with Sampler(**arguments.reading(options)) as sampler:
        snapshot = sampler.sample()
        clocks = {device.key: device.clocks for device in sampler.devices(clocks=True)} if options.clocks else {}
    if options.json:
        entries = snapshot.to_dict()["devices"]
        for entry in entries if options.clocks else ():
            entry["clocks"] = plain(clocks.get(entry["key"]))
        out.write(json.dumps(entries, indent=2 if out.terminal else None) + "\n")
    elif snapshot.identities:
        out.write(table(snapshot, bool(options.visible), out.width))
        if clocks:
            out.write("\n" + "\n".join(printable(line) for key, found in clocks.items() for line in clock_lines(key, found)) + "\n")
    say_what_is_missing(snapshot, bool(options.visible), out.width)
    return 0


def clock_lines(key: str, clocks: SupportedClocks | Unavailable | None) -> Iterator[str]:
    """Yield lines with the clocks that a device can be set to, in MHz."""
    if not isinstance(clocks, SupportedClocks):
        yield f"{key}  clocks unknown" + (f": {clocks.reason} ({clocks.detail})" if clocks else "")
        return
    for memory, graphics in clocks.graphics_by_memory.items():
        yield f"{key}  memory {memory} MHz with graphics {_range(graphics)}"
    if not clocks.graphics_by_memory:
        yield f"{key}  memory {_range(clocks.memory_mhz)}; graphics {_range(clocks.graphics_mhz)}"


def _range(clocks: Sequence[int]) -> str:
    if len(clocks) <= MOST_CLOCKS_SHOWN:
        return ", ".join(map(str, clocks)) + " MHz" if clocks else "unknown"
    return f"{clocks[-1]} to {clocks[0]} MHz ({len(clocks)} steps)"


def say_what_is_missing(snapshot: Snapshot, visible: bool, width: int) -> None:
    """Report on standard error which sources fail, and that no device was found.

    Args:
        snapshot: The reading.
        visible: Whether only the devices that a program sees were requested.
        width: Columns of the screen.
    """
    messages = [f"{one.name}: {one.detail}" for one in snapshot.backends if one.status in {"failed", "timed_out", "degraded"}]
    if visible and any(device.visible_index is None for device in snapshot.devices):
        messages.append("The program's device numbers are unknown: `accelmetrics allocation` says why.")
    if not snapshot.identities and visible:
        messages.append("No device is visible: check CUDA_VISIBLE_DEVICES, or leave out --visible.")
    elif not snapshot.identities:
        messages.append("No devices were found. `accelmetrics doctor` says what was looked for, and how to fix what is missing.")
    for message in messages:
        say("\n".join(hanging(message, width)))


def table(snapshot: Snapshot, visible: bool = False, width: int = PLAIN_WIDTH) -> str:
    """Return one line per device below a heading. Columns that do not fit are omitted, and the last line names them.

    Args:
        snapshot: The reading.
        visible: Whether to add the number that a program has for each device.
        width: Columns of the screen.
    """
    rows: list[tuple[str, ...]] = [(*HEAD, "VISIBLE") if visible else HEAD]
    for device in snapshot.devices:
        memory = quantity(device.memory_total_bytes, "By") if device.memory_total_bytes else ""
        memory = "shared with the host" if device.unified else memory
        row = (device.key, device.vendor, device.name, device.uuid, device.pci_bus_id, memory, device.driver_version)
        number = "?" if device.visible_index is None else str(device.visible_index)
        rows.append(tuple(cell or "-" for cell in (*row, *(number for _ in range(visible)))))
    columns = [list(column) for column in zip(*rows, strict=True)]
    left_out: list[str] = []
    for heading in SPARED:
        if max(map(cells, aligned(list(zip(*columns, strict=True))))) <= width:
            break
        left_out.append(heading)
        columns = [column for column in columns if column[0] != heading]
    excess = max(map(cells, aligned(list(zip(*columns, strict=True))))) - width
    named = next(column for column in columns if column[0] == "NAME")
    named[:] = [clipped(name, max(len("NAME"), max(map(cells, named)) - max(0, excess))) for name in named]
    lines = aligned(list(zip(*columns, strict=True)))
    return "\n".join([*lines, *([f"{', '.join(left_out)}: in a wider terminal, or --json"] if left_out else [])]) + "\n"
