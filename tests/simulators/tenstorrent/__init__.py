"""The files of Tenstorrent's kernel driver, as its source (tt-kmd 2.10) lays them out, below a root of the test's."""

from __future__ import annotations

import shutil
from pathlib import Path

FILES = {
    "tt_aiclk": "1350",
    "tt_axiclk": "960",
    "tt_card_type": "p150a",
    "tt_fw_bundle_ver": "18.12.1.0",
    "tt_heartbeat": "90210",
    "tt_therm_trip_count": "0",
}
SENSORS = {
    "name": "blackhole",
    "temp1_label": "asic_temp",
    "temp1_input": "47371",
    "temp1_max": "75000",
    "in0_input": "741",
    "curr1_input": "51000",
    "power1_label": "power",
    "power1_input": "62000000",
    "power1_max": "300000000",
    "fan1_input": "2890",
}
LINK = {
    "current_link_speed": "32.0 GT/s PCIe",
    "current_link_width": "16",
    "max_link_speed": "32.0 GT/s PCIe",
    "max_link_width": "16",
    "vendor": "0x1e52",
    "device": "0xb140",
    "class": "0x120000",
    "numa_node": "1",
}
COUNTERS = (
    *("mst_rd_data_word_received", "mst_nonposted_wr_data_word_sent", "mst_posted_wr_data_word_sent"),
    *("slv_nonposted_wr_data_word_received", "slv_posted_wr_data_word_received", "slv_rd_data_word_sent"),
)


class TenstorrentTree:
    """No card at first.

    Args:
        root: The root in front of ``/sys``, ``/proc`` and ``/dev``.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def slot(self, number: int) -> Path:
        """The PCI device's directory; card 0 is at 0000:81:00.0."""
        return self.root / f"sys/devices/pci0000:80/0000:{0x81 + number:02x}:00.0"

    def card(self, number: int, *, driven: bool = True) -> None:
        """A Blackhole in its slot, with the files of the driver where that is loaded."""
        for name, text in LINK.items():
            self.write(self.slot(number) / name, text)
        bus = self.root / "sys/bus/pci/devices"
        bus.mkdir(parents=True, exist_ok=True)
        (bus / self.slot(number).name).symlink_to(self.slot(number))
        if not driven:
            return
        self.write(self.root / f"dev/tenstorrent/{number}", "")
        self.held(number)
        directory = self.directory(number)
        for name, text in FILES.items():
            self.write(directory / name, text)
        self.write(directory / "tt_serial", f"00000452118{number:05X}")
        self.write(directory / "tt_asic_id", f"3F1A70C2B9D4{number:04X}")
        (directory / "device").symlink_to(self.slot(number))
        for name, text in SENSORS.items():
            self.sensor(number, name, text)
        for name in COUNTERS:
            self.counter(number, f"{name}0", 0)
            self.counter(number, f"{name}1", 0)

    def directory(self, number: int) -> Path:
        """The directory of the card's class."""
        return self.root / f"sys/class/tenstorrent/tenstorrent!{number}"

    def sensor(self, number: int, name: str, text: str) -> Path:
        """Set one of its sensors."""
        return self.write(self.slot(number) / f"hwmon/hwmon{number + 4}" / name, text)

    def counter(self, number: int, name: str, flits: int) -> None:
        """Set one of its counters."""
        self.write(self.directory(number) / "pcie_perf_counters" / name, str(flits))

    def held(self, number: int, *pids: int) -> None:
        """Say which processes hold the card's node open, a line for each descriptor."""
        self.write(self.root / f"proc/driver/tenstorrent/{number}/pids", "\n".join(map(str, pids)))

    def remove(self, number: int) -> None:
        """Take the card away, as the driver does when it is unplugged or reset."""
        shutil.rmtree(self.directory(number))

    @staticmethod
    def write(file: Path, text: str) -> Path:
        """Write one file, with the line's end that the kernel puts there."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n", "utf-8")
        return file
