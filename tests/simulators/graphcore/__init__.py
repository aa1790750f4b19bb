"""A stand-in for Graphcore's Python module ``gcipuinfo``, as a real module on the import path.

stand_in = GcipuinfoStandIn(tmp_path)
monkeypatch.syspath_prepend(stand_in.directory)         # or PYTHONPATH of a subprocess
stand_in.behave([c600(0)], mode="hang")                 # switchable while the program runs
stand_in.calls                                          # what was called, in order
"""

import json
import os
from pathlib import Path
from typing import Any, Literal

HERE = Path(__file__).parent
Mode = Literal["normal", "raise", "permission", "hang", "exit", "die", "garbage", "empty"]
Device = dict[str, str]


def c600(number: int, **changed: str) -> Device:
    """A PCIe card in use, as newer releases print it: a space before most units, no power of the IPU itself."""
    device = {
        "id": str(number),
        "target": "PCIe",
        "average board temp": "21.4 C",
        "average die temp": "27.9 C",
        "board ipu index": "0",
        "board serial number": f"0071.0044.81{number:04}",
        "board type": "C600",
        "board variant": "C600",
        "clock": "1500MHz",
        "driver version": "1.3.7",
        "firmware version": "2.6.11",
        "hexoatt total size (bytes)": "16911433728",
        "ipu architecture": "ipu21",
        "ipu error state": "no errors",
        "ipu power": "N/A",
        "ipu utilisation": "63.20%",
        "ipu utilisation (session)": "58.75%",
        "link correctable error count": "0",
        "link speed": "16.0 GT/s",
        "link width": "8",
        "numa node": "1",
        "parity initialised": "1",
        "pci id": f"0000:{0x30 + number:02x}:00.0",
        "total board power": "87.3 W",
        "user executable": "python3",
        "user name": "nan",
        "user process id": "4242",
    }
    return device | {name.replace("_", " "): value for name, value in changed.items()}


def m2000(number: int) -> Device:
    """An idle IPU of an IPU-Machine: reached over the network, so without a PCI address; its own power, no board's."""
    return {
        "id": str(number),
        "target": "Fabric",
        "average board temp": "31.5 C",
        "average die temp": "40.25 C",
        "board ipu index": str(3 - number),
        "board serial number": "0131.0007.9904411",
        "board type": "M2000",
        "clock": "1330MHz",
        "ipu architecture": "ipu2",
        "ipu power": "74.125W",
        "numa node": "N/A",
    }


class GcipuinfoStandIn:
    """The module in a directory of its own.

    Args:
        directory: Where to put it.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "gcipuinfo-module"
        self.directory.mkdir()
        (self.directory / "gcipuinfo.py").write_text((HERE / "module.py").read_text(encoding="utf-8"), encoding="utf-8")
        self.behave([])

    def behave(self, devices: list[Device], *, mode: Mode = "normal", at: str = "getDevices", delay: float = 0.0) -> None:
        """Change what the module does from its next call on; a call that hangs notices too.

        Args:
            devices: What it lists.
            mode: ``raise``, ``permission``, ``hang``, ``exit`` (``sys.exit``), ``die`` (the process ends at once), ``garbage`` and
                ``empty`` (answers that are no devices), or none of these.
            at: Where: ``import``, ``gcipuinfo`` (the constructor) or ``getDevices``.
            delay: Seconds that ``getDevices`` takes.
        """
        behaviour = {"devices": devices, "mode": mode, "at": at, "delay": delay}
        draft = self.directory / "behaviour.draft"
        draft.write_text(json.dumps(behaviour), encoding="utf-8")
        os.replace(draft, self.directory / "behaviour.json")  # noqa: PTH105  one call: a reader sees the old or the new

    @property
    def calls(self) -> list[list[Any]]:
        """Every call so far, with its arguments."""
        log = self.directory / "calls.jsonl"
        return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []

    @property
    def listings(self) -> int:
        """How often the devices were listed."""
        return self.calls.count(["getDevices"])
