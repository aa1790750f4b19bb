"""Tenstorrent Wormhole and Blackhole, through the files of their kernel driver, which any user may read.

Reading the files opens no device; ``tt-smi`` would. A file exists only if the chip's firmware reports its value. Grayskull's firmware
reports none. Power and its limit are those of the chip, in whole watts, not of the board. Neither driver nor firmware counts utilisation or
used memory. A chip that is connected through another chip (the second of an n300) has no files.

The layout is that of the driver's source (tt-kmd 2.10). Tested with a stand-in, never on a real card.
"""

from __future__ import annotations

from accelmetrics.backends.contract import Processes
from accelmetrics.backends.kit import PCIE_LINK, POWER_SHARE, DeviceRecord, Field, PolledBackend, Rate, Row, directories, total
from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.identity import DeviceProcess

HWMON = "device/hwmon/hwmon*"
RECEIVED = ("mst_rd_data_word_received", "slv_posted_wr_data_word_received", "slv_nonposted_wr_data_word_received")
SENT = ("slv_rd_data_word_sent", "mst_posted_wr_data_word_sent", "mst_nonposted_wr_data_word_sent")
WRAPS = 2.0
"""Seconds in which a 32-bit counter can wrap at the full speed of PCIe 5."""
OUTSIDE = Unavailable(Reason.NO_PERMISSION, "processes outside this container use it, and the driver does not report their ids here")


def pcie(metric: str, counters: tuple[str, ...]) -> tuple[Row, ...]:
    """Return the rows of one direction of PCIe. Each of the chip's two networks counts flits of 32 bytes."""
    places = [f"{counter}{network}" for counter in counters for network in (0, 1)]
    # The counters have 32 bits. If the interval is longer than `within`, a wrap may be hidden in it and there is no
    # rate.
    rates = [Rate(f"_{place}", f"pcie_perf_counters/{place}", "32 B", bits=32, within=WRAPS) for place in places]
    words = f"sysfs pcie_perf_counters/{counters[0]}0 and five more, rise per second"
    return (*rates, total(metric, *(rate.metric for rate in rates))._replace(words=words))


FIELDS = (
    Field("temp", f"{HWMON}/temp1_input", "mC"),
    Field("tempLimit.slowdown", f"{HWMON}/temp1_max", "mC"),
    Field("powerWatts", f"{HWMON}/power1_input", "uW"),
    Field("enforcedPowerLimitWatts", f"{HWMON}/power1_max", "uW"),
    POWER_SHARE,
    Field("smClock", "tt_aiclk", "MHz"),
    Field("fanSpeedRpm", f"{HWMON}/fan1_input"),
    *PCIE_LINK,
    *pcie("pcieRxBytes", RECEIVED),
    *pcie("pcieTxBytes", SENT),
)
IDENTITY = {
    "vendor_index": "@number",
    "name": "tt_card_type",
    "architecture": f"{HWMON}/name",
    "uuid": "tt_asic_id",
    "serial": "tt_serial",
    "pci_bus_id": "@pci",
    "firmware": "tt_fw_bundle_ver",
}


def processes(device: DeviceRecord) -> Processes:
    """Return the processes that hold a device's node open, from the driver's list."""
    path = f"/proc/driver/tenstorrent/{device.get('@number')}/pids"
    listed = device.get(path)
    if not isinstance(listed, str):
        return Unavailable(Reason.NOT_SUPPORTED, f"{path} does not exist or may not be read")
    # The driver prints 0 for a process outside our PID namespace.
    pids = {int(pid) for pid in listed.split() if pid.isdecimal()}
    return OUTSIDE if pids == {0} else tuple(DeviceProcess(pid) for pid in sorted(pids - {0}))


backend = PolledBackend(
    "tenstorrent",
    kind="npu",
    source="sysfs",
    connect=directories("/sys/class/tenstorrent/tenstorrent!*", processes=processes),
    fields=FIELDS,
    identity=IDENTITY,
    processes="/proc/driver/tenstorrent/*/pids",
    advice="load the kernel driver: sudo modprobe tenstorrent (tt-kmd, package tenstorrent-dkms)",
)
