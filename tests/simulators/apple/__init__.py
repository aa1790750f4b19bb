"""Stand-ins for the commands of a Mac, as real commands on ``PATH``, and what they print.

mac = MacStandIn(tmp_path)
monkeypatch.setenv("PATH", mac.path)
mac.behave("macmon", output=json.dumps(macmon_0_8()))   # switchable while the program runs, the pipe included
mac.behave("ioreg", mode="hang")
mac.remove("powermetrics")                              # it is not installed
mac.calls("ioreg")                                      # the arguments of every call
"""

import json
import os
import plistlib
from pathlib import Path
from typing import Any, Literal

from tests.simulators.commands import ScriptedCommand

HERE = Path(__file__).parent
COMMANDS = ("macmon", "ioreg", "powermetrics", "system_profiler", "sysctl")
Mode = Literal["normal", "hang", "die", "silent", "server"]
Document = dict[str, Any]

RAM = 34_359_738_368
NOT_ROOT = "powermetrics must be invoked as the superuser\n"


XNU = "Darwin Kernel Version 25.1.0: root:xnu-12377.41.6~2/RELEASE_ARM64_T6020"


def kernel(system: str = "Darwin", machine: str = "arm64", version: str = XNU) -> os.uname_result:
    """What ``uname`` says."""
    return os.uname_result((system, "mac", "25.1.0", version, machine))


def macmon_0_7(**changed: Any) -> Document:
    """A line as macmon prints it up to 0.7: clocks and scaled ratios in pairs."""
    return {
        "timestamp": "2026-03-01T09:15:20.250000+00:00",
        "temp": {"cpu_temp_avg": 52.75, "gpu_temp_avg": 48.5},
        "memory": {"ram_total": RAM, "ram_usage": 17_179_869_184, "swap_total": 2_147_483_648, "swap_usage": 805_306_368},
        "ecpu_usage": [1284, 0.125],
        "pcpu_usage": [3096, 0.5],
        "cpu_usage_pct": 0.375,
        "gpu_usage": [912, 0.375],
        "cpu_power": 6.5,
        "gpu_power": 7.25,
        "ane_power": 0.0,
        "all_power": 13.75,
        "sys_power": 24.5,
        "ram_power": 1.25,
        "gpu_ram_power": 0.0625,
        **changed,
    }


def macmon_0_8(**changed: Any) -> Document:
    """A line of 0.8.0: named fields, and none of the pairs."""
    core = {"die_id": 0, "core_id": 0, "freq_mhz": 1284, "scaled_ratio": 0.125, "active_ratio": 0.25}
    old = macmon_0_7()
    return {
        **{name: value for name, value in old.items() if not name.endswith(("_usage", "_usage_pct"))},
        "fans": [{"name": "fan0", "rpm": 1399, "max_rpm": 5777}],
        "cpu_scaled_ratio": 0.375,
        "cpu_active_ratio": 0.5,
        "ecpu_freq_mhz": 1284,
        "ecpu_scaled_ratio": 0.125,
        "ecpu_active_ratio": 0.25,
        "pcpu_freq_mhz": 3096,
        "pcpu_scaled_ratio": 0.5,
        "pcpu_active_ratio": 0.5625,
        "ecpu_cores": [core],
        "pcpu_cores": [core],
        "gpu_freq_mhz": 912,
        "gpu_scaled_ratio": 0.375,
        "gpu_active_ratio": 0.625,
        **changed,
    }


def ioreg(busy: object = 37, used: object = 8_589_934_592, **changed: Any) -> str:
    """The property list of one accelerator."""
    statistics = {
        "Alloc system memory": 12_884_901_888,
        "Allocated PB Size": 91_226_112,
        "Device Utilization %": busy,
        "In use system memory": used,
        "In use system memory (driver)": 0,
        "Renderer Utilization %": 35,
        "SplitSceneCount": 0,
        "Tiler Utilization %": 11,
        "recoveryCount": 0,
    }
    entry = {
        "CFBundleIdentifier": "com.apple.AGXG14X",
        "IOClass": "AGXAcceleratorG14X",
        "PerformanceStatistics": {name: value for name, value in statistics.items() if value is not None},
        "gpu-core-count": 19,
        "model": "Apple M2 Pro",
        "vendor-id": b"\x6b\x10\x00\x00",
        **changed,
    }
    return plistlib.dumps([entry]).decode()


def powermetrics(**changed: Any) -> str:
    """A sample as a property list, with the zero that stands after each."""
    sample = {
        "elapsed_ns": 200_000_000,
        "hw_model": "Mac14,9",
        "gpu": {"freq_hz": 740.5, "idle_ratio": 0.25, "gpu_energy": 600},
        "processor": {
            "ane_power": 125.0,
            "cpu_power": 4250.0,
            "gpu_power": 3000.0,
            "combined_power": 7375.0,
            "clusters": [
                {"name": "E-Cluster", "freq_hz": 1_200_000_000.0, "idle_ratio": 0.75},
                {"name": "P0-Cluster", "freq_hz": 3_000_000_000.0, "idle_ratio": 0.5},
                {"name": "P1-Cluster", "freq_hz": 2_000_000_000.0, "idle_ratio": 0.5},
            ],
        },
        **changed,
    }
    return plistlib.dumps(sample).decode() + "\0"


POWERMETRICS_TEXT = """Machine model: Mac14,9
OS version: 25C56

*** Sampled system activity (Sun Mar  1 09:15:20 2026 +0000) (201.10ms elapsed) ***

**** Processor usage ****

E-Cluster HW active frequency: 1200 MHz
E-Cluster HW active residency:  25.00% (912 MHz: 5.0% 1284 MHz:  20%)
P0-Cluster HW active frequency: 3000 MHz
P1-Cluster HW active frequency: 2000 MHz
CPU Power: 4250 mW
GPU Power: 3000 mW
ANE Power: 125 mW
Combined Power (CPU + GPU + ANE): 7375 mW

**** GPU usage ****

GPU HW active frequency: 740 MHz
GPU HW active residency:  75.50% (444 MHz: .50% 612 MHz:  75%)
GPU idle residency:  24.50%
GPU Power: 3000 mW
"""
POWERMETRICS_OLD_TEXT = """**** Processor usage ****

E-Cluster active frequency: 1200 MHz
P-Cluster active frequency: 2500 MHz
ANE Power: 125 mW
Package Power: 7375 mW

**** GPU usage ****

GPU active frequency: 740 MHz
GPU idle residency:  24.50%
"""

PROFILER = {
    "SPDisplaysDataType": [
        {
            "_name": "kHW_AppleM2ProItem",
            "spdisplays_mtlgpufamilysupport": "spdisplays_metal3",
            "spdisplays_vendor": "sppci_vendor_Apple",
            "sppci_bus": "spdisplays_builtin",
            "sppci_cores": "19",
            "sppci_device_type": "spdisplays_gpu",
            "sppci_model": "Apple M2 Pro",
        }
    ]
}


class MacStandIn(ScriptedCommand):
    """The commands in a directory of their own: those of a Mac with macmon 0.8.

    Args:
        directory: Where to put them.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, (HERE / "command.py").read_text(encoding="utf-8"), *COMMANDS)
        self.behave("macmon", json.dumps(macmon_0_8()), version="macmon 0.8.2\n")
        self.behave("ioreg", ioreg())
        self.behave("powermetrics", "", errors=NOT_ROOT, status=1)
        self.behave("system_profiler", json.dumps(PROFILER))
        self.behave("sysctl", f"{RAM}\n")

    def behave(
        self,
        name: str,
        output: str = "",
        *,
        errors: str = "",
        status: int = 0,
        mode: Mode = "normal",
        version: str = "macmon 0.8.2\n",
        period: float = 0.05,
        refused: str = "",
    ) -> None:
        """Change what a command does from now on; a pipe that runs notices at its next line.

        Args:
            name: Which.
            output: What it prints; a pipe prints it line after line.
            errors: What it prints on standard error.
            status: Its exit status.
            mode: ``hang`` (prints nothing and goes on), ``die`` (ends at once with the errors and status 7), ``silent`` (of a pipe:
                starts well and prints nothing), ``server`` (whatever it is called with, it goes on until it is killed), or normal.
            version: What ``--version`` prints.
            period: Seconds between two lines of a pipe.
            refused: An argument with which it prints nothing.
        """
        said = {"output": output, "errors": errors, "status": status, "mode": mode, "version": version, "period": period}
        self.scripted(said | {"refused": refused}, f"{name}.json")

    def macmon(self, document: Document) -> None:
        """Have the pipe print something else."""
        self.behave("macmon", json.dumps(document))

    def remove(self, *names: str) -> None:
        """Have commands not be installed."""
        for name in names:
            (self.directory / name).unlink()

    def forbid(self, name: str) -> None:
        """Take away the right to execute a command."""
        (self.directory / name).chmod(0o644)

    def calls(self, name: str) -> list[list[str]]:
        """The arguments of every call so far."""
        return [entry["arguments"] for entry in self.noted(f"{name}.calls")]

    def pids(self, name: str) -> list[int]:
        """The process ids of every call so far."""
        return [entry["pid"] for entry in self.noted(f"{name}.calls")]
