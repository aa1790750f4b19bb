"""Qualcomm Cloud AI, through ``qaic-util -q``, or the sensors of the vendor's kernel driver if the tool is missing or may not be run.

A card may have several devices (an AI 100 Ultra has four), and each prints the power of the whole card. Newer releases print the chip's own
power too. ``powerWatts`` is the chip's if it is printed; else it is the card's, and only the first device of a card has it.
``boardPowerWatts`` is always the card's. The tool prints how many cores are allocated to programs, but not for how long they compute.

Formats are those of the open runtime's source and of published outputs. Never tested on a real card.
"""

from __future__ import annotations

from collections.abc import Iterator

from accelmetrics.backends.kit import (
    MEMORY,
    PCIE_LINK,
    POWER_SHARE,
    PRINTED,
    Command,
    Derived,
    DeviceSample,
    Field,
    PolledBackend,
    Source,
    difference,
    directories,
    figure,
    pcie_generation,
    quoted,
    sections,
    text,
)
from accelmetrics.schemas.errors import Reason, Unavailable

COMMAND = Command(
    "qaic-util",
    ("-q",),
    directories=("/opt/qti-aic/tools",),
    install="install the Cloud AI Platform SDK, which has /opt/qti-aic/tools/qaic-util",
)
CHIP = "soc power(watts)"
FIELDS = (
    Field("temp", "SoC temperature(degree C)", "C"),
    Field("powerWatts", "SOC power(Watts)", "W", zero_is_missing=True),
    Field("enforcedPowerLimitWatts", "SOC TDP Cap(Watts)", "W"),
    Field("boardPowerWatts", "Board power(Watts)", "W", zero_is_missing=True, of_whole=True),  # an AI 200 prints 0.00
    Field("_cap", "card cap", "W", of_whole=True),
    Derived("powerWatts", ("boardPowerWatts",), lambda watts: watts, "boardPowerWatts"),
    Derived("enforcedPowerLimitWatts", ("_cap",), lambda watts: watts, 'qaic-util "Board TDP Cap(Watts)"'),
    POWER_SHARE,
    Field("memoryTotalBytes", "Dram Total", PRINTED),  # in KB; older releases print MB
    Field("memoryFreeBytes", "Dram Free", PRINTED),
    difference("memoryAllocatedBytes", "memoryTotalBytes", "memoryFreeBytes"),
    MEMORY[0],
    Field("_cores", "Nsp Total", "1"),
    Field("_free_cores", "Nsp Free", "1"),
    difference("coresAllocated", "_cores", "_free_cores"),
    Field("smClock", "NSP Frequency(Mhz)", "MHz"),
    Field("memoryClock", "DDR Frequency(Mhz)", "MHz"),
    Field("pcieLinkGen", "Current Link Speed", convert=pcie_generation),
    Field("pcieLinkWidth", "Current Link Width", convert=figure),
    Field("maxPcieLinkGen", "Max Link Speed", convert=pcie_generation),
    Field("maxPcieLinkWidth", "Max Link Width", convert=figure),
)
IDENTITY = {"vendor_index": "qid", "name": "sku type", "pci_bus_id": "pci address", "serial": "hw serial", "firmware": "fw version"}
HWMON = "device/hwmon/hwmon*"
# Sensor 2 is the SoC, sensor 1 the board.
SENSORS = (
    Field("temp", f"{HWMON}/temp2_input", "mC"),
    Field("tempLimit.shutdown", f"{HWMON}/temp2_emergency", "mC"),
    Field("powerWatts", f"{HWMON}/power2_input", "uW", zero_is_missing=True),
    Field("enforcedPowerLimitWatts", f"{HWMON}/power2_max", "uW"),
    *PCIE_LINK,
)
UNKNOWN_CARD = Unavailable(Reason.NOT_SUPPORTED, "several devices, and no board serial that shows which of them are one card")


def parse(printed: str) -> Iterator[DeviceSample]:
    """Parse the output of ``qaic-util -q``. All values of a device that is not ready have its state as their reason."""
    devices = [{key.lower(): value for key, value in device.items()} for device in sections(printed, r"\s*QID\s+(?P<qid>\d+)\s*$")]
    for device in devices:
        record: dict[str, object] = {**device}
        # Without the chip's own lines, power and limit are the card's.
        if CHIP not in device:
            record["card cap"] = device.get("board tdp cap(watts)", device.get("tdp cap(watts)"))
        card = text(device.get("board serial"))
        # Without a board serial the power of one card could be counted several times.
        if not card and len(devices) > 1:
            record |= dict.fromkeys(("board power(watts)", "card cap"), UNKNOWN_CARD)
        state = device.get("status", "Ready")
        if state.lower() != "ready":
            why = Unavailable(Reason.DRIVER_ERROR, f"qaic-util reports that the device is not ready: {quoted(state)}")
            places = [row.where.lower() for row in FIELDS if isinstance(row, Field) and isinstance(row.where, str)]
            record = {**dict.fromkeys(places, why), **device}
        yield DeviceSample(record, whole=card)


backend = PolledBackend(
    "qualcomm",
    kind="npu",
    source="qaic-util",
    connect=COMMAND.poll(parse),
    fields=FIELDS,
    identity=IDENTITY,
    interval=2.0,
    also=(
        Source(
            "sysfs",
            # Only instead of the tool: a sensor may take a second to answer, since the driver asks the chip's firmware.
            directories("/sys/class/accel/accel*", drivers=("qaic",)),
            SENSORS,
            identity={"vendor_index": "@number", "pci_bus_id": "@pci"},
            instead_of="qaic-util",
        ),
    ),
    advice="load the kernel driver (modprobe qaic), run as root or in the group qaic; in a container pass /dev/accel in",
)
