"""NVIDIA GPUs, through NVML (``libnvidia-ml.so.1``), the library behind nvidia-smi.

Calls: a reading calls the library through ``ctypes`` partials that are bound once per device. Their answers land in one
preallocated buffer, which is decoded at once.

Intervals: utilisation, memory, temperature, power, clocks and counters are read at every reading; processes, encoder, decoder and
fan every second; limits, modes, error counters, links, fabric and BAR1 every ten seconds; constants once. An answer of "not
supported" is remembered until the driver is reopened. After any other failure, the value is read again at the next reading. If a
slow value fails again then, it keeps its own interval.

Hangs: a hanging call affects one device. Opening the driver asks only for the facts that list the devices, on a thread that is
replaced if a call does not return. The rest about a device is asked at its own first reading.

Several sources for one value (an older form of a call, the call behind a field): an older source is used until the newest has
answered once. After that, a failure of the newest is a reason, and no other source's number replaces it. A refusal is no answer:
the host's memory counts as a device's only if the product is known to share it. The layout of each answer is checked.

MIG: each instance is a device below its GPU, with the values of an instance (memory, processes, GPM shares). The board's values
stay with the GPU. New instances are listed within ten seconds while the driver is open. An instance that was removed, as its GPU
confirms, leaves the list, and its key is never used for another.

Suspended GPUs: a suspended GPU is not called, and NVML is not opened while all of them are suspended.

PCIe throughput: NVML takes 20 ms per direction. If it is wanted and the GPU has neither GPM nor byte counters, it is measured on a
thread beside the readings, every ten seconds, or each second if it is selected by name.

Avoided on purpose: calls within a reading that measure inside the driver, sleeping between two GPM samples (they come from two
consecutive readings), and fabric queries on drivers that crash on them.

Files: this one detects GPUs without the driver, and has the row of differences for each vendor with an NVML-like library
(:class:`Maker`). The other files use the terms NVML, NVIDIA and GPU throughout. Another library's function names are substituted
when a function is bound, and its words when a reason or an error leaves the driver. ``nvml`` is the library and its return codes,
``metrics`` the table of metrics. ``gpu`` opens the driver and finds the GPUs and their instances. ``driver`` lists them and reads
one of them for one consumer, from the parts in ``calls``, ``links``, ``gpm``, ``threads`` and ``processes``. ``references`` reads
nvidia-ml-py and nvidia-smi, for ``accelmetrics verify``. A new value is a row in ``metrics`` and a row in the catalogue, then
``make generate``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from accelmetrics.backends.contract import SYSTEM_CLOCK, Clock, Detection
from accelmetrics.backends.guard import through
from accelmetrics.backends.kit.system import PCI, PCI_ADDRESS, link_name, list_directory, pci_devices, read_text, sysroot
from accelmetrics.schemas.named_tuple import NamedTuple

if TYPE_CHECKING:
    from accelmetrics.backends.contract import Coverage, Driver, ReadOptions, Reference
    from accelmetrics.schemas.errors import Unavailable
    from accelmetrics.schemas.identity import DeviceKind
    from accelmetrics.schemas.metric import Metric

NAME, VENDOR = "nvidia", "0x10de"
GPU_CLASSES = ("0x0300", "0x0302")
"""VGA and 3D controllers. Audio and USB functions on the same board have other classes."""
CONTROL = "/dev/nvidiactl"
WSL, WSL_FOLDER = "/dev/dxg", "/usr/lib/wsl/lib"
"""The device of WSL2, and the folder of the Windows driver's libraries there. Some distributions have no loader cache that lists the
folder.
"""
LOADER_CACHE = "/etc/ld.so.cache"
"""The system loader's cache of library paths, each between two zero bytes."""
LOADER_FOLDERS = ("/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib")
"""Folders that the loader searches without the cache."""
INTEGRATED = "/sys/bus/platform/drivers/gk20a"
"""The directory of the driver of Jetson GPUs before Thor."""
THOR = "/sys/class/devfreq/gpu-gpc-0"
SHARES_CHIP = re.compile(r"\b(?:nvgpu|Thor|Orin|Xavier|Tegra)\b", re.IGNORECASE)
"""NVML's names of Jetson GPUs: ``Orin (nvgpu)``, ``NVIDIA Thor``."""
OF_JETSON = "the GPU of a Jetson is read by the backend jetson"
CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")
_START = (
    "start the container with its GPUs: `docker run --gpus all`, `podman run --device nvidia.com/gpu=all`, nvidia.com/gpu in Kubernetes"
)


class Maker(NamedTuple):
    """A vendor and its NVML-like library.

    Attributes:
        name: The backend's name, which is also the vendor in identities.
        brand: The vendor's name in messages.
        source: The library in one word, for ``doctor``.
        vendor_id: The PCI vendor id of its devices.
        nodes: Its device nodes in messages.
        paths: Returns the names and paths to load the library by; the first that exists is used.
        is_installed: Returns whether the library's file exists, without loading it.
        advise: Returns advice if the library, or else its devices, are missing; empty if both exist.
        devices: Returns the PCI addresses of the devices that its driver has.
        module_version: Returns the version of the loaded kernel module, empty if not known.
        kind: The first word of its devices' keys.
        chip: Its word for a device.
        spelling: Replacements for NVML's names and words, applied in order.
        rows: By metric of NVML's table, the row that replaces it (``NvmlMetric``): with another call, or for another metric.
        metrics: The metrics and patterns with calls in its library, and with a ``-`` in front those without; all metrics by default.
            Metrics of the watched process have ``process.`` in front.
        pci: The layout of a device's PCI address: domain, bus, device, the device's and its vendor's id as one number, the address
            as text.
        architectures: The names of its architectures, by number.
        faults: The messages to look for in the kernel's log when a device is lost.
        load: The command that loads its kernel module, in brackets.
        reset: The command that resets a device, in brackets.
        start: How a container gets its devices, in brackets.
        listed_elsewhere: Returns, by a device's name, why another backend lists it; empty if this backend does.
    """

    name: str
    brand: str
    source: str
    vendor_id: str
    nodes: str
    paths: Callable[[], tuple[str, ...]]
    is_installed: Callable[[], bool]
    advise: Callable[[bool], str]
    devices: Callable[[], list[str]]
    module_version: Callable[[], str] = str
    kind: DeviceKind = "gpu"
    chip: str = "GPU"
    spelling: tuple[tuple[str, str], ...] = ()
    rows: Mapping[str, Any] = MappingProxyType({})
    metrics: tuple[str, ...] = ()
    # nvmlPciInfo_t. The short address in front and the subsystem's id are skipped.
    pci: str = "=16x4I4x32s"
    architectures: Mapping[int, str] = MappingProxyType({})
    faults: str = "messages"
    load: str = ""
    reset: str = ""
    start: str = ""
    listed_elsewhere: Callable[[str], str] = lambda _: ""

    def spell(self, text: str) -> str:
        """Return a function's name, or words about NVML, in the terms of this library."""
        for nvidias, own in self.spelling:
            text = text.replace(nvidias, own)
        return text

    def reason(self, reason: Unavailable) -> Unavailable:
        """Return a reason in the terms of this library."""
        return reason._replace(detail=self.spell(reason.detail)) if self.spelling else reason

    def called(self, metric: str) -> str:
        """Return this vendor's name for a metric of NVML's table."""
        return self.rows[metric].name if metric in self.rows else metric

    def covers(self, metric: str) -> bool:
        """Return whether the library has calls for a metric, as far as is known."""
        if any(fnmatchcase(metric, item[1:]) for item in self.metrics if item.startswith("-")):
            return False
        listed = [item for item in self.metrics if not item.startswith("-")]
        return not listed or any(fnmatchcase(metric, item) for item in listed)

    # Makers are keys of caches, and their mappings have no hash.
    def __hash__(self) -> int:
        return hash(self.name)


class NvidiaBackend:
    """NVIDIA GPUs through NVML. Its modules load on first use.

    Args:
        clock: Clock for the intervals of slow values and of rates.
    """

    name = NAME
    kind: DeviceKind | None = "gpu"
    interval = 0.0

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock

    def detect(self) -> Detection:
        """Look for the library's file, the driver's device node and GPUs on the PCI bus, without loading anything."""
        name = library_name()
        gpus = len(pci_devices(VENDOR, GPU_CLASSES)) - len(integrated_gpus())
        if is_jetson() and gpus <= 0:
            return Detection(False, f"no NVIDIA GPU but the integrated one: {OF_JETSON}")
        library, node = is_installed(), _exists(sysroot() + CONTROL)
        on_the_bus = f"{gpus} NVIDIA GPU{'s' if gpus > 1 else ''}" if gpus else "no NVIDIA GPU"
        evidence = f"{name} is {'' if library else 'not '}installed; {on_the_bus} on the PCI bus"
        present = library or node or gpus > 0
        return Detection(present, evidence, gpus, advise(library) if present else "")

    def open(self) -> Driver:
        from accelmetrics.backends.nvidia.gpu import open_driver

        return open_driver(self._clock, NVIDIA)

    def coverage(self) -> Coverage:
        from accelmetrics.backends.nvidia.metrics import coverage

        return coverage(NVIDIA)

    def own_metrics(self) -> Iterable[Metric]:
        return ()

    def references(self, options: ReadOptions) -> Sequence[Reference]:
        """Return the readers of NVIDIA's own binding and NVIDIA's own command."""
        from accelmetrics.backends.nvidia.references import NvidiaMlPy, NvidiaSmi

        return NvidiaMlPy(options), NvidiaSmi()


def is_jetson() -> bool:
    """Return whether this is a Jetson: by the driver of GPUs before Thor, or by a directory that only Thor has."""
    return _exists(sysroot() + INTEGRATED) or _exists(sysroot() + THOR)


def integrated_gpus() -> list[str]:
    """Return the PCI address of a Thor's GPU; empty on other machines. The GPU of an older Jetson is no PCI device."""
    if not _exists(sysroot() + THOR):
        return []
    # The devfreq directory lies below the GPU's PCI device in sysfs.
    above = [name for name in os.path.realpath(sysroot() + THOR).split("/") if PCI_ADDRESS.fullmatch(name)]
    return above[-1:] or pci_devices(VENDOR, GPU_CLASSES)[:1]


def driven_gpus() -> list[str]:
    """List the PCI addresses of the GPUs that NVIDIA's driver has; in a container, only of the container's GPUs if they are shown."""
    listed = list_directory("/proc/driver/nvidia/gpus")
    found = [address for address in pci_devices(VENDOR, GPU_CLASSES) if address not in integrated_gpus()]
    if listed:
        return [address for address in found if address in listed]
    # GPUs with another driver belong to a virtual machine (vfio-pci) or to nouveau. A GPU without any driver may be suspended, and
    # nothing here would wake it.
    loaded = _exists(sysroot() + CONTROL) or bool(kernel_module_version())
    return [address for address in found if link_name(f"{PCI}/{address}/driver") in (("nvidia", "") if loaded else ("nvidia",))]


def library_name() -> str:
    """Return the file name of the library."""
    return "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"


def library_path() -> str:
    """Return the name to load the library by; its path if the system's loader does not find it by name."""
    name = library_name()
    if sys.platform == "win32":
        return next(filter(os.path.exists, _windows_paths()), name)
    for folder in wsl_folders():
        if _exists(outside := f"{sysroot()}{folder}/{name}") and not knows_loader(name):
            return outside
    return name


def _windows_paths() -> tuple[str, ...]:
    """Return the library's possible paths on Windows, that of newer drivers first."""
    windows, programs = os.environ.get("WINDIR", "C:/Windows"), os.environ.get("PROGRAMFILES", "C:/Program Files")
    return f"{windows}/System32/{library_name()}", f"{programs}/NVIDIA Corporation/NVSMI/{library_name()}"


def wsl_folders() -> tuple[str, ...]:
    """Return the folder of the Windows driver's libraries and commands on WSL2; empty on other systems."""
    return (WSL_FOLDER,) if _exists(sysroot() + WSL) else ()


@through
def is_installed() -> bool:
    """Return whether the library's file exists where it is loaded from, without loading it."""
    if sys.platform == "win32":
        return any(map(_exists, _windows_paths()))
    return knows_loader(library_name()) or library_path() != library_name()


def knows_loader(name: str) -> bool:
    """Return whether the system's loader finds a library by its file name, without loading it."""
    folders = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    if any(_exists(folder, name) for folder in (*folders, *LOADER_FOLDERS)):
        return True
    with suppress(OSError), open(LOADER_CACHE, "rb") as file:  # noqa: PTH123 - pathlib would slow every first reading
        known = re.findall(rb"\0(/[^\0]*/%b)\0" % re.escape(name.encode()), file.read())
        # The cache may list files that were removed since.
        return any(_exists(os.fsdecode(path)) for path in known)
    return False


def _exists(*parts: str) -> bool:
    """Return whether a file exists; False if its folder may not be searched."""
    return os.path.exists(os.path.join(*parts))  # noqa: PTH110, PTH118 - pathlib's raises for such a folder


def kernel_module_version() -> str:
    """Return the version of the loaded kernel module (``535.161.07``); empty if none is loaded."""
    # The open kernel modules print "Open Kernel Module for x86_64".
    found = re.search(r"(?:Kernel Module(?: for \S+)?)\s+(\d[\d.]*)", read_text("/proc/driver/nvidia/version") or "")
    return found.group(1) if found else ""


def advise(library: bool) -> str:
    """Return advice if the library, or else its device nodes, are missing; empty if both exist."""
    if library and (sys.platform != "linux" or _exists(sysroot() + CONTROL) or _exists(sysroot() + WSL)):
        return ""
    visible = os.environ.get("NVIDIA_VISIBLE_DEVICES")
    # With these values NVIDIA's container runtime gives a container no GPU.
    if visible in ("", "void", "none"):
        return f"NVIDIA_VISIBLE_DEVICES is {visible!r}: the container asks for no GPU; set it to `all`"
    if any(_exists(sysroot() + mark) for mark in CONTAINER_MARKS) or os.environ.get("KUBERNETES_SERVICE_HOST"):
        return f"{CONTROL} is missing: {_START}" if library else f"{_START} (the NVIDIA container toolkit then brings the library in)"
    if not library:
        return "install the NVIDIA driver for this system; it brings libnvidia-ml.so.1"
    if kernel_module_version():
        return f"the kernel module is loaded and {CONTROL} is missing: run `nvidia-modprobe -c 0 -u` or nvidia-smi once as root"
    return "load the driver's kernel module (`modprobe nvidia`), or install the driver that fits the running kernel"


NVIDIA = Maker(
    NAME,
    brand="NVIDIA",
    source="nvml",
    vendor_id=VENDOR.removeprefix("0x"),
    nodes="/dev/nvidia*",
    paths=lambda: (library_path(),),
    is_installed=is_installed,
    advise=advise,
    devices=driven_gpus,
    module_version=kernel_module_version,
    architectures={
        2: "Kepler",
        3: "Maxwell",
        4: "Pascal",
        5: "Volta",
        6: "Turing",
        7: "Ampere",
        8: "Ada Lovelace",
        9: "Hopper",
        10: "Blackwell",
        # NVML_DEVICE_ARCH_T23X.
        11: "Orin",
    },
    faults="Xid messages",
    load=" (`modprobe nvidia`)",
    reset=" (`nvidia-smi --gpu-reset -i N`)",
    start=" (`docker run --gpus all`)",
    listed_elsewhere=lambda name: OF_JETSON if SHARES_CHIP.search(name) and is_jetson() else "",
)
backend = NvidiaBackend()
