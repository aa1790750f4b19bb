"""Where one vendor's library differs from NVIDIA's: a row each for NVIDIA and for the vendors whose libraries have NVML's form.

The other files of this folder speak of NVML, NVIDIA and GPUs throughout. What those are called in another vendor's library is looked up
where a function is bound, and put into words where a reason or an error leaves the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from accelmetrics.schemas.named_tuple import NamedTuple

if TYPE_CHECKING:
    from accelmetrics.schemas.errors import Unavailable
    from accelmetrics.schemas.identity import DeviceKind


class Maker(NamedTuple):
    """One vendor and its library.

    Attributes:
        name: The backend's name, which is the vendor's in identities.
        brand: The vendor for people.
        source: The library in one word, for ``doctor``.
        vendor_id: The PCI id of its devices' vendor.
        nodes: Its device nodes, for people.
        paths: Lists what the library is loaded by; the first that is there is used.
        is_installed: Says whether the library's file is there, without loading it.
        advise: Says what to do where the library is missing, or else its devices are; empty where both are there.
        devices: Lists the PCI addresses of the devices that its driver has.
        module_version: Returns the version of the loaded kernel module, empty where that is not known.
        kind: The first word of its devices' keys.
        chip: What it calls a device.
        spelling: What NVML's names and words are here, put in one after the other.
        rows: By metric of NVML's table, the row in its place (``NvmlMetric``): with another call, or for another metric.
        gives: The metrics and patterns that its library has calls for, those without after a ``-``; all where left out. Metrics of the
            watched process have ``process.`` in front.
        pci: The layout of a device's PCI address: domain, bus, device, the device's and its vendor's id as one number, the address as text.
        architectures: The names of its architectures, by number.
        faults: What to look for in the kernel's log when a device is lost.
        load: The command that loads its kernel module, in brackets.
        reset: The command that resets a device, in brackets.
        start: How a container gets its devices, in brackets.
        leaves: Says of a device, by its name, why another backend lists it; empty of one that is listed.
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
    gives: tuple[str, ...] = ()
    pci: str = "=16x4I4x32s"
    architectures: Mapping[int, str] = MappingProxyType({})
    faults: str = "messages"
    load: str = ""
    reset: str = ""
    start: str = ""
    leaves: Callable[[str], str] = lambda _: ""

    def spell(self, text: str) -> str:
        """Return NVML's name of a function, or words about NVML, as they are here."""
        for nvidias, own in self.spelling:
            text = text.replace(nvidias, own)
        return text

    def reason(self, reason: Unavailable) -> Unavailable:
        """Return a reason in the words of this library."""
        return reason._replace(detail=self.spell(reason.detail)) if self.spelling else reason

    def called(self, metric: str) -> str:
        """Return what a metric of NVML's table is called here."""
        return self.rows[metric].name if metric in self.rows else metric

    def covers(self, metric: str) -> bool:
        """Return whether the library has calls for a metric, as far as is known."""
        if any(fnmatchcase(metric, item[1:]) for item in self.gives if item.startswith("-")):
            return False
        listed = [item for item in self.gives if not item.startswith("-")]
        return not listed or any(fnmatchcase(metric, item) for item in listed)

    def __hash__(self) -> int:
        return hash(self.name)
