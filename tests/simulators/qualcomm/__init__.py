"""What ``qaic-util -q`` prints, and the sensors of the vendor's kernel driver."""

from __future__ import annotations

from pathlib import Path


def device(qid: int, *left_out: str, card: str = "", **changed: str) -> str:
    """A device in the form of the Platform SDK; ``changed`` has keys with ``_`` for a blank.

    Args:
        qid: Its number.
        left_out: Keys that are not printed.
        card: The serial number of its card.
        changed: Values by key.
    """
    said = {
        "Status": "Ready",
        "PCI Address": f"0000:{0x21 + qid:02x}:00.0",
        "PCI Info": "Unassigned class [ff00] Qualcomm Device a100",
        "Max Link Speed": "16GT/s",
        "Max Link Width": "x8",
        "Current Link Speed": "8GT/s",
        "Current Link Width": "x4",
        "HW Version": "2.0.0.0",
        "HW Serial": f"0x2b00000{qid + 1}",
        "FW Version": "1.17.6",
        "FW OEM_IMAGE_VERSION": "",
        "Dram Total": "33546240 KB",
        "Dram Free": "25159680 KB",
        "Dram Fragmentation": "0.00%",
        "Nsp Total": "16",
        "Nsp Free": "12",
        "Networks Loaded": "1",
        "Networks Active": " 1",
        "NSP Frequency(Mhz)": "1190",
        "DDR Frequency(Mhz)": "2130",
        "Sku Type": "Pcie Ultra",
        "Board serial": card,
        "SoC temperature(degree C)": str(41 + qid),
        "Board power(Watts)": "48.00",
        "Board TDP Cap(Watts)": "150.00",
        "SOC power(Watts)": "11.50",
        "SOC TDP Cap(Watts)": "46.00",
    } | {key.replace("_", " "): value for key, value in changed.items()}
    lines = (f"\t{key}:{value}" for key, value in said.items() if key not in left_out)
    return "\n".join((f"QID {qid}", *lines, ""))


def listing(*devices: str) -> str:
    """The whole output."""
    return f"LRT QC_IMAGE_VERSION: LRT.AIC.6.7\nNumber of devices: {len(devices)}\n{''.join(devices)}"


def tree(root: Path, number: int, address: str, driver: str = "qaic", **sensors: str) -> Path:
    """An accelerator of the kernel's, with sensors as the driver shows them."""
    pci = root / "sys/devices/pci0000:00" / address
    hwmon = pci / f"hwmon/hwmon{number + 3}"
    hwmon.mkdir(parents=True)
    for name, value in {"name": "qaic", **sensors}.items():
        (hwmon / name).write_text(f"{value}\n", encoding="utf-8")
    drivers = root / "sys/bus/pci/drivers" / driver
    drivers.mkdir(parents=True, exist_ok=True)
    (pci / "driver").symlink_to(drivers)
    accel = root / f"sys/class/accel/accel{number}"
    accel.mkdir(parents=True)
    (accel / "device").symlink_to(pci)
    return hwmon
