"""What a device is: asked once through ``pynvml``, every fact on its own.

What listing a device needs is asked when the driver is opened, the rest at the device's first reading: there a call that hangs
costs nobody else.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

from accelmetrics.backends.kit.system import read_text
from accelmetrics.backends.nvidia.calls import ALL_ONES
from accelmetrics.backends.nvidia.errors import FUNCTION_NOT_FOUND, GONE, NOT_SUPPORTED, source_error
from accelmetrics.backends.nvidia.library import Library
from accelmetrics.backends.nvidia.memory import DeviceMemory, ask_memory
from accelmetrics.schemas.identity import DeviceIdentity

T = TypeVar("T")

ARCHITECTURES = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada Lovelace",
    9: "Hopper",
    10: "Blackwell",
    11: "Orin",
}
"""``NVML_DEVICE_ARCH_…``; numbers that are not here are newer than this table."""
_STABLE = (NOT_SUPPORTED, FUNCTION_NOT_FOUND)


class System(NamedTuple):
    """What all devices have in common."""

    driver_version: str = ""
    cuda_version: str = ""


class Questions:
    """Asks through the binding; a fact that is not to be had is left out.

    Attributes:
        complete: Whether every answer so far will stay: given, or known not to exist.
    """

    def __init__(self, library: Library, steps: list[Any]) -> None:
        self._library = library
        self._steps = steps
        self.complete = True

    def handle(self, index: int) -> Any:
        """A device's handle, without which there is nothing else to ask."""
        name = "nvmlDeviceGetHandleByIndex"
        try:
            return self._library.ask(name, index)
        except self._library.nvml.NVMLError as error:
            raise source_error(error.value, f"NVIDIA GPU {index} cannot be opened") from error
        finally:
            self._steps.append(name)

    def ask(self, name: str, *arguments: Any, otherwise: T) -> Any | T:
        """One fact, or what stands for its absence."""
        try:
            return self._library.ask(name, *arguments)
        except self._library.nvml.NVMLError as error:
            self._note(error.value, name)
            return otherwise
        finally:
            self._steps.append(name)

    def text(self, name: str, *arguments: Any) -> str | int:
        """One text, or the return code of the call's failure."""
        try:
            return str(self._library.ask(name, *arguments))
        except self._library.nvml.NVMLError as error:
            self._note(error.value, name)
            return int(error.value)
        finally:
            self._steps.append(name)

    def memory(self, handle: Any) -> DeviceMemory:
        """The device's memory, and whether it is the host's."""
        try:
            return ask_memory(self._library, handle)
        except self._library.nvml.NVMLError as error:
            self._note(error.value, "nvmlDeviceGetMemoryInfo")
            return DeviceMemory(None)
        finally:
            self._steps.append("nvmlDeviceGetMemoryInfo")

    def _note(self, code: int, name: str) -> None:
        if code in GONE:
            raise source_error(code, name)
        self.complete = self.complete and code in _STABLE


def ask_system(library: Library) -> System:
    """The driver's version and the newest CUDA version that it supports."""
    questions = Questions(library, [])
    cuda = questions.ask("nvmlSystemGetCudaDriverVersion_v2", otherwise=0)
    version = questions.ask("nvmlSystemGetDriverVersion", otherwise="")
    return System(str(version), f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "")


def recognise(questions: Questions, index: int, handle: Any, system: System) -> DeviceIdentity:
    """What a device is listed and numbered by."""
    ask = questions.ask
    pci = ask("nvmlDeviceGetPciInfo", handle, otherwise=None)
    return DeviceIdentity(
        "gpu",
        "nvidia",
        index,
        name=str(ask("nvmlDeviceGetName", handle, otherwise="")),
        uuid=str(ask("nvmlDeviceGetUUID", handle, otherwise="")),
        pci_bus_id=str(pci.busId) if pci is not None else "",
        driver_version=system.driver_version,
        runtime_version=system.cuda_version,
    )


def describe(questions: Questions, listed: DeviceIdentity, handle: Any, memory: DeviceMemory) -> DeviceIdentity:
    """Everything else about a device that does not change."""
    ask = questions.ask
    cores = ask("nvmlDeviceGetNumGpuCores", handle, otherwise=None)
    architecture = ask("nvmlDeviceGetArchitecture", handle, otherwise=0)
    return listed._replace(
        serial=str(ask("nvmlDeviceGetSerial", handle, otherwise="")),
        architecture=ARCHITECTURES.get(architecture, ""),
        firmware=str(ask("nvmlDeviceGetVbiosVersion", handle, otherwise="")),
        cores=None if cores in (None, 0, ALL_ONES) else int(cores),
        memory_total_bytes=memory.total,
        numa_node=_numa_node(questions, handle, listed.pci_bus_id),
        unified=memory.unified,
    )


def completed(new: DeviceIdentity, old: DeviceIdentity) -> DeviceIdentity:
    """The new facts, and the old ones where a new one could not be had."""
    kept: dict[str, Any] = {name: before for name, now, before in zip(new._fields, new, old, strict=True) if now in ("", None)}
    return new._replace(**kept)


def _numa_node(questions: Questions, handle: Any, bus_id: str) -> int | None:
    """NVML says it for GPUs that are NUMA nodes themselves; the slot's node is the kernel's to say. -1 is "none"."""
    node = questions.ask("nvmlDeviceGetNumaNodeId", handle, otherwise=None)
    if node is None:
        # NVML writes eight digits of the domain in capitals, sysfs four in small letters.
        text = read_text(f"/sys/bus/pci/devices/{bus_id[-12:].lower()}/numa_node") if bus_id else None
        node = int(text) if text and text.lstrip("-").isdecimal() else None
    return int(node) if node is not None and 0 <= node < ALL_ONES else None
