"""Intel Gaudi (Habana), through ``hl-smi -Q``, or its table on releases without this query, and the kernel driver's files.

The files add values that the tool omits on some boards (the PCIe link), and are used alone if the tool is missing. Then the temperature is
that of the hottest hwmon sensor that the driver's lm-sensors file calls "On Chip", the same as in the vendor's library. The library itself
leaks memory and is not loaded. ``HABANA_VISIBLE_MODULES`` lists modules, which are numbered differently from ``hl-smi``. Some hundred MiB
of the memory in use belong to the firmware. Processes are found by the compute nodes that they hold open.

Names and units of the fields are those of the vendor's documentation and of programs that use them; tables are those of releases 1.4 and
1.21. Never tested on a real device.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

from accelmetrics.backends.kit import (
    MEMORY,
    PCIE_LINK,
    POWER_SHARE,
    Command,
    DeviceDirectory,
    DeviceSample,
    Field,
    PolledBackend,
    Query,
    Says,
    Source,
    directories,
    figure,
    first_match,
    number,
    table,
    text,
)
from accelmetrics.backends.kit.system import read_text
from accelmetrics.schemas.errors import Reason, Unavailable

NO_DEVICE = Says(
    "no AIPs available|driver is not loaded",
    Reason.DRIVER_UNAVAILABLE,
    "hl-smi finds no device",
    "load the driver: sudo modprobe habanalabs; in a container, start it with --runtime=habana -e HABANA_VISIBLE_DEVICES=all",
    gone=True,
)
COMMAND = Command(
    "hl-smi",
    environment={"HABANA_LOGS": "{directory}"},  # it fails if it cannot write its logs
    install="install the package habanalabs-firmware-tools, which has hl-smi",
    says=(NO_DEVICE,),
)
FIELDS = (
    Field("utilization", "utilization.aip", "%"),
    Field("memoryAllocatedBytes", "memory.used", "MiB"),
    Field("memoryTotalBytes", "memory.total", "MiB"),
    *MEMORY,
    Field("temp", "temperature.aip", "C"),
    Field("powerWatts", "power.draw", "W"),
    Field("enforcedPowerLimitWatts", "power.max", "W"),
    POWER_SHARE,
    Field("smClock", "clocks.current.soc", "MHz"),
    Field("maxSmClock", "clocks.max.soc", "MHz"),
    Field("correctedEccErrors", "ecc.errors.corrected.volatile.total", "1"),
    Field("uncorrectedEccErrors", "ecc.errors.uncorrected.volatile.total", "1"),
    Field("correctedEccErrorsAggregate", "ecc.errors.corrected.aggregate.total", "1"),
    Field("uncorrectedEccErrorsAggregate", "ecc.errors.uncorrected.aggregate.total", "1"),
    Field("correctedMemoryErrors", "ecc.errors.dram-corrected.volatile.total", "1"),
    Field("correctedMemoryErrorsAggregate", "ecc.errors.dram-corrected.aggregate.total", "1"),
    Field("pcieLinkGen", "pcie.link.gen.current", "1", convert=figure),
    Field("pcieLinkWidth", "pcie.link.width.current", "1", convert=figure),
    Field("maxPcieLinkGen", "pcie.link.gen.max", "1", convert=figure),
    Field("maxPcieLinkWidth", "pcie.link.width.max", "1", convert=figure),
)
IDENTITY = {
    **{"vendor_index": "index", "name": "name", "uuid": "uuid", "serial": "serial", "pci_bus_id": "bus_id"},
    **{"module_id": "module_id", "driver_version": "driver_version"},
}
ASKED = (*IDENTITY.values(), *(row.where for row in FIELDS if isinstance(row, Field) and isinstance(row.where, str)))
IN_TABLE = (
    Field("utilization", "AIP-Util", "%"),
    Field("memoryAllocatedBytes", "Memory-Usage.0", "MiB"),
    Field("memoryTotalBytes", "Memory-Usage.1", "MiB"),
    *MEMORY,
    Field("temp", "Temp", "C"),
    Field("powerWatts", "Pwr:Usage/Cap.0", "W"),
    Field("enforcedPowerLimitWatts", "Pwr:Usage/Cap.1", "W"),
    POWER_SHARE,
    Field("performanceState", "Perf", "1", convert=figure),
    Field("uncorrectedEccErrors", "Volatile Uncorr. ECC", "1"),  # later releases print a count of unspecified events instead
)
# The vendor's library takes the hottest sensor on the chip. The library itself is not used, since each of its calls for
# a temperature leaks memory.
HWMON = "device/hwmon/hwmon*"
IN_FILES = (
    Field("temp", "on chip", "mC", words=f"sysfs {HWMON}, the hottest sensor on the chip"),
    Field("enforcedPowerLimitWatts", "device/max_power", "mW"),
    Field("smClock", "device/clk_cur_freq_mhz", "MHz"),
    *PCIE_LINK,
)
SENSORS = "/etc/sensors.d/hl_sensors.conf"
UNNAMED = Unavailable(Reason.NOT_SUPPORTED, f"{SENSORS} does not say which sensors of this board are on the chip")
NODE = r"/dev/accel/accel(\d{1,4})"


def parse_table(printed: str) -> Iterator[DeviceSample]:
    """Parse the table that ``hl-smi`` prints without arguments."""
    driver = first_match(printed, r"(?m)^\W*Driver Version: *(\S+)")
    for device in table(printed, r"AIP +Name"):
        yield DeviceSample({**device, "driver": driver})


def on_chip(board: str) -> list[str]:
    """Return the hwmon channels (``temp1``) that the driver's lm-sensors file calls "On Chip" for a board."""
    found: dict[str, None] = {}
    applies = False
    for line in (read_text(SENSORS) or "").splitlines():
        word, _, rest = line.strip().partition(" ")
        names = re.findall(r'"([^"]*)"', rest)
        if word == "chip":
            applies = any(fnmatchcase(f"{board}-pci-0", each) for each in names)
        elif applies and word == "label" and names and names[0].startswith("On Chip"):
            found[rest.split()[0]] = None
        elif applies and word == "ignore":
            found.pop(rest.strip(), None)
    return list(found)


class Card(DeviceDirectory):
    """Files of a device, extended by the temperature of the chip."""

    def get(self, place: str) -> object:
        """Return the value at a place."""
        if place != "on chip":
            return super().get(place)
        readings = [super(Card, self).get(f"{HWMON}/{each}_input") for each in on_chip(text(super().get(f"{HWMON}/name")))]
        known = [value for each in readings if isinstance(value := number(each, "mC", "Cel"), (int, float))]
        return f"{max(known)} C" if known else next((each for each in readings if each is not None), UNNAMED)


IDENTITY_IN_TABLE = {"vendor_index": "AIP", "name": "Name", "pci_bus_id": "Bus-Id", "driver_version": "driver"}
IDENTITY_IN_FILES = {"vendor_index": "@number", "minor_number": "@number", "pci_bus_id": "@pci", "architecture": "device/device_type"}
backend = PolledBackend(
    "gaudi",
    kind="hpu",
    vendor="habana",
    source="hl-smi",
    connect=Query(COMMAND, ASKED, "-Q", "{fields}", "-f", "csv"),
    fields=FIELDS,
    identity=IDENTITY,
    interval=2.0,
    also=(
        Source("hl-smi-table", COMMAND.poll(parse_table), IN_TABLE, identity=IDENTITY_IN_TABLE, instead_of="hl-smi"),
        Source(
            "sysfs",
            directories("/sys/class/accel/accel[0-9]*", drivers=("habanalabs",), record=Card, nodes=NODE),
            IN_FILES,
            identity=IDENTITY_IN_FILES,
        ),
    ),
    processes="compute nodes that a process holds open",
    advice="check whether hl-smi lists any device; dmesg may show why not",
)
