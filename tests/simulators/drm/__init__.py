"""A stand-in for the kernel's view of devices with DRM drivers, on the PCI bus or on a board: a directory for ``ACCELMETRICS_SYSROOT``.

The layout is the kernel's: a device's directory below ``/sys/devices``, in it those of its class (``drm/card0``, ``accel/accel0``) with a
link back, and links to all of them from ``/sys/class``, its bus and its driver.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.simulators.amdgpu import Content, Tree


class DrmTree(Tree):
    """A machine's ``/sys``, ``/proc`` and ``/dev``."""

    def add(
        self, name: str, driver: str, files: Mapping[str, Content], *, number: int = 0, node: str = "drm/card", below: tuple[str, ...] = ()
    ) -> Path:
        """A device, its files and the directories of its class.

        Args:
            name: What it is called on its bus: a PCI address, or ``1002000000.v3d``.
            driver: The kernel driver; empty for none.
            files: By path below its directory; ``{}`` in one is the directory of its class.
            number: The number of its node.
            node: Its class, and how its nodes are called. A card of the class drm has a render node and a connector, too.
            below: The bridges above it, as far as they are of interest.

        Returns:
            Its directory.
        """
        bus = "pci" if ":" in name else "platform"
        home = Path(self.root, "sys/devices", "pci0000:00" if bus == "pci" else "platform/soc", *below, name)
        class_ = node.partition("/")[0]
        own = f"{node}{number}"
        nodes = (own, f"drm/renderD{128 + number}", f"drm/card{number}/card{number}-HDMI-A-1") if class_ == "drm" else (own,)
        for path in filter(None, nodes if class_ else ()):
            (home / path).mkdir(parents=True)
            self._point(home / path / "device", (home / path).parent.parent if path.count("/") == 1 else home / own)
            self._point(self.root / "sys/class" / class_ / path.rpartition("/")[2], home / path)
        for path, content in files.items():
            self.write(f"/{(home / path.format(own)).relative_to(self.root)}", content)
        self._point(home / "subsystem", self.root / f"sys/bus/{bus}")
        self._point(self.root / f"sys/bus/{bus}/devices/{name}", home)
        if driver:
            registered = self.root / f"sys/bus/{bus}/drivers/{driver}"
            self._point(registered / name, home)
            self._point(home / "driver", registered)
            self.write(f"/sys/bus/{bus}/drivers/{driver}/uevent", "")
        return home

    def sensors(self, device: Path, number: int, files: Mapping[str, Content]) -> None:
        """Sensors of a device, as hwmon shows them; ``name`` is that of the driver."""
        for name, content in files.items():
            self.write(f"/{device.relative_to(self.root)}/hwmon/hwmon{number}/{name}", content)

    def remove(self, device: Path) -> None:
        """The driver lets go of a device, and it falls off its bus."""
        for link in (path for below in ("sys/class", "sys/bus") for path in (self.root / below).rglob("*") if path.is_symlink()):
            if link.readlink().is_relative_to(device):
                link.unlink()
        shutil.rmtree(device)

    @staticmethod
    def _point(link: Path, target: Path) -> None:
        target.mkdir(parents=True, exist_ok=True)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)


def fdinfo(driver: str, number: int, address: str = "", **keys: str | int) -> str:
    """``fdinfo`` of one client.

    Args:
        driver: The kernel driver.
        number: The client's number.
        address: The device's PCI address; empty for one on a board.
        keys: By what stands behind ``drm-`` in a key, its value; ``_`` is ``-`` in a key that has none.
    """
    lines = ["pos:\t0", "flags:\t02100002", "mnt_id:\t24", "ino:\t1094", f"drm-driver:\t{driver}", f"drm-client-id:\t{number}"]
    lines += [f"drm-pdev:\t{address}"] if address else []
    spelled = {key if "-" in key else key.replace("_", "-"): value for key, value in keys.items()}
    return "\n".join((*lines, *(f"drm-{key}:\t{value}" for key, value in spelled.items())))
