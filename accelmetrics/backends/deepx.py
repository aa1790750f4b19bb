"""DEEPX M1, through ``dxrt-cli -s``. Experimental.

The tool prints clock and temperature of each core, but no utilisation, power or memory in use. ``temp`` is that of the hottest core,
``smClock`` the clock of the fastest. Memory is rounded to three digits.

The format is that of the vendor's source (dx_rt, ``device_info_status.cpp``). Never tested on a real device.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from accelmetrics.backends.built_in import BUILT_IN
from accelmetrics.backends.kit import PRINTED, Command, DeviceSample, Field, PolledBackend, blocks, first_match, number
from accelmetrics.backends.kit.system import find_pci

COMMAND = Command(
    ("dxrt-cli", "dxcli"), ("-s",), directories=("/usr/local/bin",), install="install DEEPX's runtime (dx_rt), which has dxrt-cli"
)
FIELDS = (
    Field("temp", "temperature", "C", words='dxrt-cli "temperature", the hottest core'),
    Field("smClock", "clock", "MHz", words='dxrt-cli "clock", the fastest core'),
    Field("memoryTotalBytes", "memory", PRINTED),
    Field("pcieLinkGen", "generation"),
    Field("pcieLinkWidth", "width"),
)
IDENTITY = {"vendor_index": "number", "name": "name", "pci_bus_id": "address", "driver_version": "driver", "firmware": "firmware"}
CORE = re.compile(r"NPU \d+: voltage [^,]*, clock (?P<clock>[^,]*), temperature (?P<temperature>\S+)")
LINK = re.compile(r"PCIe +: Gen(\d{1,2}) X(\d{1,2}) \[(\d{1,3}):(\d{1,2}):(\d{1,2})\]", re.ASCII)


def parse(printed: str) -> Iterator[DeviceSample]:
    """Parse the output of ``dxrt-cli -s``."""
    for found, block in blocks(printed, r"\s*\*\s*Device\s+(?P<number>\d+)\s*:\s*(?P<name>[^,]*)"):
        record: dict[str, object] = {
            **found,
            "driver": first_match(block, r"RT Driver version *: *(\S+)"),
            "firmware": first_match(block, r"FW version *: *(\S+)"),
            "memory": first_match(block, r"\* *Memory *:.*, *([^,\n]+)"),
        }
        cores = [core.groupdict() for core in CORE.finditer(block)]
        for name, unit, target in (("clock", "MHz", "MHz"), ("temperature", "C", "Cel")):
            record[name] = _greatest([core[name] for core in cores], unit, target)
        if (link := LINK.search(block)) is not None:
            record |= {"generation": link[1], "width": link[2], "address": _address(*map(int, link.groups()[2:]))}
        yield DeviceSample(record)


def _greatest(printed: list[str], unit: str, target: str) -> object:
    """Return the largest value of the cores. If a value is no number, it is returned instead."""
    values = [number(each, unit, target) for each in printed]
    known = [each for each in values if isinstance(each, (int, float))]
    invalid = next((each for each in values if not isinstance(each, (int, float))), None)
    return max(known, default=None) if invalid is None else invalid


def _address(bus: int, device: int, function: int) -> str:
    """Return the PCI address of the vendor's device at this place; empty without one, or with one in several domains."""
    # The tool prints the address in decimal and without the domain, so the domain comes from the kernel's list of
    # devices.
    found = [address for address in find_pci(BUILT_IN["deepx"].pci) if address.endswith(f":{bus:02x}:{device:02x}.{function}")]
    return found[0] if len(found) == 1 else ""


backend = PolledBackend(
    "deepx",
    kind="npu",
    source="dxrt-cli",
    connect=COMMAND.poll(parse),
    fields=FIELDS,
    identity=IDENTITY,
    interval=2.0,
    advice="check whether dxrt-cli -s lists any device, and load the kernel driver: modprobe dxrt_driver",
    remark="experimental: the format is known from the vendor's source, and it was never tested on a device",
)
