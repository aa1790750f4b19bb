"""The files that kernel drivers show on a Jetson, below a root of the test's, as the drivers' sources and published listings have them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

MEMINFO = """MemTotal:       {total} kB
MemFree:         1180364 kB
MemAvailable:    4432100 kB
SwapTotal:       3902812 kB
SwapFree:        3902812 kB
{nvmap}CmaTotal:         262144 kB
CmaFree:          210432 kB
"""
CLIENTS = """CLIENT                        PROCESS      PID        SIZE
user                         gpu_burn     7979    2352564K
user                  VLLM::EngineCor     8119       5800K
user                         gpu_burn     7979         36K
kernel                         nvhost        0       1024K
total                                             2359424K
"""


class JetsonTree:
    """A module without anything on it; :meth:`orin_nx`, :meth:`agx_orin` and :meth:`thor` put there what those have.

    Args:
        root: The root in front of ``/sys`` and ``/proc``.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._hwmons = 0
        self._thermals = 0

    def write(self, path: str, text: str) -> Path:
        """Write one file, with the line's end that the kernel puts there."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n", "utf-8")
        return file

    def link(self, path: str, to: str) -> None:
        """Make a link of sysfs."""
        link = self.root / path.lstrip("/")
        link.parent.mkdir(parents=True, exist_ok=True)
        target = self.root / to.lstrip("/")
        target.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(target, link.parent))

    def module(self, model: str, chip: str, memory_kib: int, nvmap: str = "") -> None:
        """Say what the device tree and the kernel's memory say."""
        self.write("/proc/device-tree/model", f"{model}\0")
        self.write("/proc/device-tree/serial-number", "1421323049284\0")
        self.write("/proc/device-tree/compatible", f"nvidia,p3768-0000+p3767-0000\0nvidia,p3767-0000\0nvidia,{chip}\0")
        self.write("/proc/meminfo", MEMINFO.format(total=memory_kib, nvmap=nvmap).rstrip("\n"))

    def clocks(self, name: str, device: str, driver: str, current: int, highest: int) -> None:
        """Make the directory of a device's clocks, in Hz."""
        self.write(f"{device}/devfreq/{name}/cur_freq", str(current))
        self.write(f"{device}/devfreq/{name}/max_freq", str(highest))
        self.write(f"{device}/devfreq/{name}/governor", "nvhost_podgov")
        self.link(f"{device}/devfreq/{name}/device", device)
        self.link(f"/sys/class/devfreq/{name}", f"{device}/devfreq/{name}")
        bus = "pci" if driver == "nvidia" else "platform"
        self.link(f"{device}/driver", f"/sys/bus/{bus}/drivers/{driver}")
        self.link(f"/sys/bus/{bus}/drivers/{driver}/{device.rpartition('/')[2]}", device)

    def nvgpu(self, name: str = "17000000.gpu", load: int = 417) -> None:
        """Make the GPU of an Orin."""
        device = f"/sys/devices/platform/bus@0/{name}"
        self.clocks(name, device, "gk20a", 918_000_000, 918_000_000)
        self.write(f"{device}/devfreq/{name}/available_frequencies", "306000000 510000000 714000000 918000000")
        self.write(f"{device}/load", str(load))
        self.write(f"{device}/power/runtime_status", "active")
        # The GPU is not the only device with clocks.
        self.clocks("15340000.vic", "/sys/devices/platform/bus@0/15340000.vic", "tegra-vic", 115_200_000, 729_600_000)

    def hwmon(self, name: str, files: Mapping[str, str]) -> Path:
        """Make a hwmon device."""
        directory = f"/sys/devices/platform/i2c/hwmon/hwmon{self._hwmons}"
        self.write(f"{directory}/name", name)
        for file, text in files.items():
            self.write(f"{directory}/{file}", text)
        self.link(f"/sys/class/hwmon/hwmon{self._hwmons}", directory)
        self._hwmons += 1
        return self.root / directory.lstrip("/")

    def ina3221(self, *rails: tuple[str, int, int]) -> Path:
        """Make a sensor of up to three rails: what they are called, millivolts and milliamperes."""
        files = {"in7_label": "sum of shunt voltages", "in7_input": "2480", "curr4_input": "999999"}
        for channel, (label, millivolts, milliamperes) in enumerate(rails, 1):
            files |= {f"in{channel}_label": label, f"in{channel}_input": str(millivolts), f"curr{channel}_input": str(milliamperes)}
            files |= {f"in{channel + 3}_input": "1240", f"curr{channel}_max": "32760", f"curr{channel}_crit": "32760"}
        return self.hwmon("ina3221", files)

    def thermal(self, kind: str, type_: str, file: str, text: str) -> Path:
        """Make a thermal zone or a cooling device."""
        directory = f"/sys/class/thermal/{kind}{self._thermals}"
        self._thermals += 1
        self.write(f"{directory}/type", type_)
        return self.write(f"{directory}/{file}", text)

    def heat(self, gpu: str = "gpu-thermal", degrees: str = "53406") -> Path:
        """Make the thermal zones and what cools them; returns the file of the GPU's temperature."""
        self.thermal("thermal_zone", "cpu-thermal", "temp", "55281")
        sensor = self.thermal("thermal_zone", gpu, "temp", degrees)
        self.thermal("thermal_zone", "tj-thermal", "temp", "57000")
        self.thermal("cooling_device", "pwm-fan", "cur_state", "3")
        self.thermal("cooling_device", "gpu-throttle-alert", "cur_state", "0")
        return sensor

    def orin_nx(self) -> None:
        """A Jetson Orin NX with JetPack 6: it measures what the module draws."""
        nvmap = "NvMapMemFree:     94784 kB\nNvMapMemUsed:    805068 kB\n"
        self.module("NVIDIA Jetson Orin NX Engineering Reference Developer Kit", "tegra234", 16_099_096, nvmap)
        self.nvgpu()
        self.hwmon("pwmfan", {"pwm1": "102", "pwm1_enable": "1"})
        self.hwmon("pwm_tach", {"rpm": "2890"})
        self.ina3221(("VDD_IN", 4992, 1464), ("VDD_CPU_GPU_CV", 4984, 320), ("VDD_SOC", 4992, 448))
        self.heat()
        self.write("/sys/kernel/debug/nvmap/iovmm/clients", CLIENTS.rstrip("\n"))

    def agx_orin(self) -> None:
        """A Jetson AGX Orin with JetPack 5: none of its rails is that of the whole."""
        self.module("Jetson AGX Orin Developer Kit", "tegra234", 32_103_260)
        self.nvgpu("17000000.ga10b")
        self.ina3221(("NC", 4968, 0), ("VDDQ_VDD2_1V8AO", 4968, 341), ("NC", 0, 0))
        self.ina3221(("VDD_GPU_SOC", 12_024, 617), ("VDD_CPU_CV", 12_024, 343), ("VIN_SYS_5V0", 4968, 953))
        self.heat("GPU-therm")

    def thor(self, pci: str = "0000:01:00.0") -> None:
        """A Jetson AGX Thor: its GPU is a PCI device of NVIDIA's general driver, and has no file of its load."""
        self.module("NVIDIA Jetson AGX Thor Developer Kit", "tegra264", 128_790_092)
        device = f"/sys/devices/platform/pcie/pci0000:00/0000:00:00.0/{pci}"
        self.clocks("gpu-gpc-0", device, "nvidia", 1_575_000_000, 1_575_000_000)
        for file, text in {"vendor": "0x10de", "device": "0x2b00", "class": "0x030000"}.items():
            self.write(f"{device}/{file}", text)
        self.link(f"/sys/bus/pci/devices/{pci}", device)
        self.ina3221(("VDD_GPU", 12_000, 2700), ("VDD_CPU_SOC_MSS", 12_000, 1185), ("VIN_SYS_5V0", 4968, 1312))
        self.hwmon("ina238", {"label": "VIN", "in0_input": "3", "in1_input": "19904", "curr1_input": "3010", "power1_input": "59911040"})
        self.heat()

    def file(self, path: str) -> Path:
        """Where a system file is."""
        return self.root / path.lstrip("/")

    def remove(self, path: str) -> None:
        """Take a directory of sysfs away, with its link."""
        found = self.file(path)
        target = found.resolve()
        if found.is_symlink():
            found.unlink()
        shutil.rmtree(target)
