"""``accelmetrics list``: the devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelmetrics.cli import parsing
from accelmetrics.cli.output import say

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from accelmetrics.cli.output import Stdout
    from accelmetrics.schemas.snapshot import Snapshot

HEAD = ("KEY", "VENDOR", "NAME", "UUID", "PCI", "MEMORY", "DRIVER")
EXAMPLES = """\
  accelmetrics list
  accelmetrics list --json | jq -r '.[].uuid'
  accelmetrics list --backends nvidia"""


def configure(parser: ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("--json", action="store_true", help="print a JSON array: the entries of `devices` in the document of dump --json")
    add("--backends", type=parsing.backends, metavar="LIST", help="sources, by name: nvidia,amd")
    add("--timeout", type=parsing.pause, metavar="S", help="seconds to wait for an answer, and for sources to open (default: 1, and 10)")


def run(options: Namespace, out: Stdout) -> int:
    """Print the devices; where there are none, or a source fails, say so beside it."""
    from accelmetrics.sampling.options import DEFAULT_OPEN_TIMEOUT, DEFAULT_TIMEOUT
    from accelmetrics.sampling.sampler import Sampler

    timeout, open_timeout = options.timeout or DEFAULT_TIMEOUT, options.timeout or DEFAULT_OPEN_TIMEOUT
    with Sampler(options.backends, timeout=timeout, open_timeout=open_timeout) as sampler:
        snapshot = sampler.sample()
    if options.json:
        import json

        out.write(json.dumps(snapshot.to_dict()["devices"], indent=2 if out.terminal else None) + "\n")
    elif snapshot.identities:
        out.write(table(snapshot))
    _explain(snapshot)
    return 0


def table(snapshot: Snapshot) -> str:
    """A line a device, below a heading."""
    from accelmetrics.cli.layout import aligned
    from accelmetrics.cli.units import quantity

    rows = [HEAD]
    for device in snapshot.devices:
        memory = quantity(device.memory_total_bytes, "By") if device.memory_total_bytes else ""
        memory = "shared with the host" if device.unified else memory
        cells = (device.key, device.vendor, device.name, device.uuid, device.pci_bus_id, memory, device.driver_version)
        rows.append(tuple(cell or "-" for cell in cells))  # type: ignore[arg-type]  # as many cells as the heading has
    return "\n".join(aligned(rows)) + "\n"


def _explain(snapshot: Snapshot) -> None:
    for status in snapshot.backends:
        if status.status in {"failed", "timed_out", "degraded"}:
            say(f"{status.name}: {status.detail}")
    if not snapshot.identities:
        say("No devices were found. `accelmetrics doctor` says what was looked for, and what to do where something is expected.")
