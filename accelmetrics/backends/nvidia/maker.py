"""Differences of NVML-like libraries: a row for NVIDIA, and one for each vendor with a library of NVML's form.

The other files of this folder use the terms NVML, NVIDIA and GPU throughout. Another library's function names are substituted when
a function is bound, and its words when a reason or an error leaves the driver.
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
    """A vendor and its library.

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
        gives: The metrics and patterns with calls in its library, and with a ``-`` in front those without; all metrics by default.
            Metrics of the watched process have ``process.`` in front.
        pci: The layout of a device's PCI address: domain, bus, device, the device's and its vendor's id as one number, the address
            as text.
        architectures: The names of its architectures, by number.
        faults: The messages to look for in the kernel's log when a device is lost.
        load: The command that loads its kernel module, in brackets.
        reset: The command that resets a device, in brackets.
        start: How a container gets its devices, in brackets.
        leaves: Returns, by a device's name, why another backend lists it; empty if this backend does.
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
    # nvmlPciInfo_t. The short address in front and the subsystem's id are skipped.
    pci: str = "=16x4I4x32s"
    architectures: Mapping[int, str] = MappingProxyType({})
    faults: str = "messages"
    load: str = ""
    reset: str = ""
    start: str = ""
    leaves: Callable[[str], str] = lambda _: ""

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
        if any(fnmatchcase(metric, item[1:]) for item in self.gives if item.startswith("-")):
            return False
        listed = [item for item in self.gives if not item.startswith("-")]
        return not listed or any(fnmatchcase(metric, item) for item in listed)

    # Makers are keys of caches, and their mappings have no hash.
    def __hash__(self) -> int:
        return hash(self.name)
