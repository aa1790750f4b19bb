"""Building blocks for a vendor's backend. ``docs/backends.md`` explains how to write one.

- :mod:`~accelmetrics.backends.kit.fields`: tables that map a vendor's record to metrics, with units and plausible values;
- :mod:`~accelmetrics.backends.kit.parsing`: parsers for the output of tools;
- :mod:`~accelmetrics.backends.kit.polled`: backends whose source reports all devices at once, and how devices are recognised;
- :mod:`~accelmetrics.backends.kit.commands`, :mod:`~accelmetrics.backends.kit.sysfs`: sources that are commands, also ones that print
  a stream, and directories of files;
- :mod:`~accelmetrics.backends.kit.watchdog`: child processes that never outlive this one;
- :mod:`~accelmetrics.backends.kit.library`: shared libraries, loaded without blocking the program;
- :mod:`~accelmetrics.backends.kit.system`, :mod:`~accelmetrics.backends.kit.processes`: system files, the hardware they list, and
  processes with their use of devices;
- :mod:`~accelmetrics.backends.kit.sources`: backends that choose one of several drivers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accelmetrics.backends.kit.commands import (
        Command as Command,
        Completed as Completed,
        LineProcess as LineProcess,
        Query as Query,
        each_device as each_device,
        stream as stream,
    )
    from accelmetrics.backends.kit.fields import (
        MEMORY as MEMORY,
        POWER_SHARE as POWER_SHARE,
        PRINTED as PRINTED,
        Derived as Derived,
        DeviceRecord as DeviceRecord,
        Field as Field,
        Rate as Rate,
        Row as Row,
        Says as Says,
        coded as coded,
        difference as difference,
        is_absent as is_absent,
        number as number,
        pcie_generation as pcie_generation,
        quoted as quoted,
        share as share,
        switched as switched,
        text as text,
        total as total,
        whole as whole,
    )
    from accelmetrics.backends.kit.library import import_library as import_library, load_first as load_first, load_library as load_library
    from accelmetrics.backends.kit.parsing import (
        blocks as blocks,
        figure as figure,
        first_match as first_match,
        grouped as grouped,
        json_document as json_document,
        json_documents as json_documents,
        rows as rows,
        sections as sections,
        table as table,
        with_units as with_units,
        xml_records as xml_records,
    )
    from accelmetrics.backends.kit.polled import (
        DeviceSample as DeviceSample,
        PolledBackend as PolledBackend,
        PollOnce as PollOnce,
        Source as Source,
    )
    from accelmetrics.backends.kit.processes import DrmKeys as DrmKeys, NodeHolders as NodeHolders, descendants as descendants
    from accelmetrics.backends.kit.sources import SourcesBackend as SourcesBackend
    from accelmetrics.backends.kit.sysfs import (
        PCIE_LINK as PCIE_LINK,
        DeviceDirectory as DeviceDirectory,
        OnChip as OnChip,
        clocks as clocks,
        directories as directories,
    )
    from accelmetrics.backends.kit.system import find_hardware as find_hardware

_PUBLIC = {
    "commands": "Command Completed LineProcess Query each_device stream",
    "fields": "MEMORY POWER_SHARE PRINTED Derived Field Rate Row Says DeviceRecord "
    "coded difference is_absent number pcie_generation quoted share switched text total whole",
    "library": "import_library load_first load_library",
    "parsing": "blocks figure first_match grouped json_document json_documents rows sections table with_units xml_records",
    "polled": "DeviceSample PollOnce PolledBackend Source",
    "processes": "DrmKeys NodeHolders descendants",
    "sources": "SourcesBackend",
    "sysfs": "PCIE_LINK DeviceDirectory OnChip clocks directories",
    "system": "find_hardware",
}
_HOMES = {name: module for module, names in _PUBLIC.items() for name in names.split()}
__all__ = tuple(_HOMES)


# Names load on first use, because detection imports `system` alone and must not pay for the modules that a reading needs.
def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
