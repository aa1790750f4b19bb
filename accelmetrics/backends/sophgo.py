"""Sophgo TPU cards (BM1682, BM1684, BM1684X), through the files of their kernel driver, which any user may read.

A card has one chip or several, and each chip is a device. Power is that of the chip's rails, which the driver adds up if it can measure all
of them. Otherwise it is the card's, and only its first chip has it. Utilisation is counted only after root has switched it on
(``npu_usage_enable``). No file has the memory in use. Boards on which the chip itself is the host have other files and are not supported.

Names, units and forms are those of the driver's source (libsophon, ``bm_debug.c`` and ``bm_attr.c``). Never tested on a real card.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from accelmetrics.backends.kit import (
    Derived,
    DeviceDirectory,
    DeviceSample,
    Field,
    PolledBackend,
    PollOnce,
    Says,
    directories,
    figure,
    first_match,
    switched,
)
from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.identity import pci_address

SYSFS = "/sys/class/bm-sophon/bm-sophon@/device"
"""Directory of a chip in sysfs; ``@`` is its number."""
NOT_COUNTED = Unavailable(
    Reason.NOT_SUPPORTED, "the driver does not count it until root writes 1 to /sys/class/bm-sophon/bm-sophon<n>/device/npu_usage_enable"
)


def usage(printed: str) -> object:
    """Return the utilisation over the driver's last interval from ``usage:12 avusage:3``, or why it is missing."""
    return NOT_COUNTED if "usage enable" in printed.lower() else first_match(printed, r"\busage:(\d+)") or printed


def of_fan(word: str) -> Callable[[str], str]:
    """Return a converter that takes the number after a word from the fan's file. Text without the word is returned unchanged."""
    return lambda printed: found[1] if (found := re.search(rf"(?m)^{word}\s+(\d+)", printed)) else printed


class Chip(DeviceDirectory):
    """Files of a chip, including the ones in other directories."""

    def get(self, place: str) -> object:
        """Return the value at a place: text, a reason, or None if there is nothing."""
        if place == "@address":
            address = super().get("dbdf")
            return pci_address(address) if isinstance(address, str) else None
        return super().get(place.replace("bm-sophon@", f"bm-sophon{super().get('@number')}"))


FIELDS = (
    Field("utilization", f"{SYSFS}/npu_usage", "%", convert=usage),
    Field("temp", "chip_temp", "C"),
    Field("powerWatts", "chip_power", "W", zero_is_missing=True),
    Field("boardPowerWatts", "../board_power", "W", zero_is_missing=True, of_whole=True),
    Derived("powerWatts", ("boardPowerWatts",), lambda watts: watts, "boardPowerWatts"),
    Field("smClock", "tpu_freq", "MHz"),
    Field("maxSmClock", "../tpu_maxclk", "MHz"),
    Field("fanSpeed", "../fan_speed", "%", convert=of_fan("duty"), of_whole=True),
    Field("fanSpeedRpm", "../fan_speed", "rpm", convert=of_fan("fan_speed"), of_whole=True),
    Field("eccMode", "ecc", convert=switched),
    Field("memoryTotalBytes", "ddr_capacity", "GiB", convert=lambda printed: first_match(printed, r", *(\d+)g$") or printed),
    Field("pcieLinkGen", "pcie_link_speed", convert=figure),
    Field("pcieLinkWidth", "pcie_link_width", convert=figure),
    Field("maxPcieLinkGen", "pcie_cap_speed", convert=figure),
    Field("maxPcieLinkWidth", "pcie_cap_width", convert=figure),
)
IDENTITY = {"vendor_index": "@number", "pci_bus_id": "@address", "name": "../board_type", "architecture": "../chipid", "serial": "../sn"}


def connect() -> PollOnce:
    """Return a poll of the directories of all chips. The chips of one card have a common parent directory."""
    poll = directories("/proc/bmsophon/card*/bmsophon*", record=Chip)()

    def chips() -> Iterable[DeviceSample]:
        for each in poll():
            # With their card's path, values of the card are counted once.
            yield each._replace(whole=each.record.path.rpartition("/")[0] if isinstance(each.record, Chip) else "")

    return chips


backend = PolledBackend(
    "sophgo",
    kind="npu",
    source="proc",
    connect=connect,
    fields=FIELDS,
    identity=IDENTITY,
    says=(Says("not support", Reason.NOT_SUPPORTED),),
    advice="load the kernel driver: sudo modprobe bmsophon (package sophon-driver); in a container, mount /proc/bmsophon",
)
