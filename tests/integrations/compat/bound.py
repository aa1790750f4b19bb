"""NVIDIA's binding in this process, with the stand-in under it, over readings that a test makes."""

from __future__ import annotations

import ctypes
import functools
import inspect
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

from accelmetrics.integrations.compat.feed import NvmlFeed
from accelmetrics.integrations.compat.startup._accelmetrics_nvml import attach
from accelmetrics.schemas.errors import Unavailable
from accelmetrics.schemas.identity import DeviceIdentity, DeviceProcess, DeviceSlot
from accelmetrics.schemas.snapshot import Snapshot

MIB = 2**20
MI210 = DeviceIdentity(
    "gpu",
    "amd",
    0,
    name="AMD Instinct MI210",
    uuid="0x8e5520cb71d2aa00",
    pci_bus_id="0000:43:00.0",
    serial="PCB03110",
    firmware="113-D67301-063",
    driver_version="6.8.5",
)
VALUES: Mapping[str, float] = {
    **{"gpu": 83, "memory": 41, "temp": 47.4, "memoryTemp": 52.0, "tempLimit.slowdown": 100.0, "tempLimit.shutdown": 105.0},
    **{"powerWatts": 212.5, "enforcedPowerLimitWatts": 300.0, "energyJoules": 5_000_000.25, "fanSpeed": 30, "performanceState": 2},
    **{"smClock": 1700, "memoryClock": 1600, "maxSmClock": 1710, "maxMemoryClock": 1610, "pcieReplays": 5},
    **{"memoryAllocatedBytes": 16380 * MIB, "memoryTotalBytes": 65520 * MIB, "memoryFreeBytes": 49000 * MIB},
    **{"pcieLinkGen": 3, "pcieLinkWidth": 8, "maxPcieLinkGen": 4, "maxPcieLinkWidth": 16, "pcieTxBytes": 2048, "pcieRxBytes": 4096},
    **{"encoderUtilization": 11, "decoderUtilization": 12, "correctedMemoryErrors": 7, "uncorrectedMemoryErrorsAggregate": 3},
    **{"throttle.gpuIdle": 0, "throttle.swPowerCap": 1, "throttle.hwThermalSlowdown": 1},
}


def second(identity: DeviceIdentity = MI210) -> DeviceIdentity:
    """Another one alike."""
    return identity._replace(vendor_index=1, uuid="0x8e5520cb71d2aa01", pci_bus_id="0000:83:00.0", serial="PCB03111")


def reading(
    *devices: tuple[DeviceIdentity, Mapping[str, float]],
    missing: Mapping[str, Unavailable] | None = None,
    processes: Mapping[str, Sequence[DeviceProcess]] | None = None,
) -> Snapshot:
    """One moment of a machine with these devices."""
    slots = [DeviceSlot(f"{identity.kind}.{number}", number, number, identity) for number, (identity, _) in enumerate(devices)]
    metrics = {f"{slot.key}.{name}": value for slot, (_, values) in zip(slots, devices, strict=True) for name, value in values.items()}
    listed = {key: tuple(found) for key, found in (processes or {}).items()}
    return Snapshot(time.time_ns(), "node", metrics, slots, missing or {}, processes=listed)


@functools.cache
def binding() -> Any:
    """A copy of the installed binding, so that the one that all tests use keeps its library."""
    import pynvml

    spec = spec_from_file_location("pynvml_over_readings", pynvml.__file__)
    assert spec is not None
    assert spec.loader is not None
    made = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


class Bound:
    """The copy of the binding over a feed; the last that was made has it.

    Args:
        first: The first reading.
        everything: Whether NVIDIA's devices are among those that are seen.
    """

    def __init__(self, first: Snapshot, everything: bool = False) -> None:
        self.feed = NvmlFeed(first, 1.0, everything)
        self.nvml = binding()
        attach(self.nvml, str(self.feed.folder))

    def handle(self, index: int = 0) -> Any:
        """The handle of a device."""
        return self.nvml.nvmlDeviceGetHandleByIndex(index)

    def code(self, function: str, *arguments: Any) -> int:
        """The return code of a function that fails."""
        try:
            answer = getattr(self.nvml, function)(*arguments)
        except self.nvml.NVMLError as error:
            return int(error.value)
        raise AssertionError(f"{function} answered {answer!r}")


def device_functions(nvml: Any) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Each function of a binding that is about a device, to be called with its handle."""
    for name, function in inspect.getmembers(nvml, inspect.isfunction):
        if name.startswith("nvmlDevice") and not name.startswith(("nvmlDeviceGetHandleBy", "nvmlDeviceGetCount")):
            yield name, functools.partial(called, nvml, function)


def called(nvml: Any, function: Callable[..., Any], handle: Any) -> Any:
    """Call a function with a handle where it wants one, and something that fits elsewhere."""
    parameters = [one.name for one in inspect.signature(function).parameters.values() if one.default is inspect.Parameter.empty]
    given = {"pciInfo": nvml.nvmlPciInfo_t(), "fieldIds": [83], "uuid": b"", "hostname": "name", "c_nonce": [0] * 32}
    given |= dict.fromkeys(("handle", "device", "handle1", "handle2", "device1", "device2"), handle)
    wrong: list[Exception] = []
    for other in (0, ctypes.pointer(ctypes.c_uint()), (ctypes.c_uint * 64)(), nvml.nvmlPciInfo_t()):
        try:
            return function(*[given.get(name, other) for name in parameters])
        except (TypeError, AttributeError, ctypes.ArgumentError) as error:  # an argument of another kind is wanted
            wrong.append(error)
    raise wrong[0]
