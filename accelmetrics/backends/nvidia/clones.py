"""Vendors with NVML-like libraries. A vendor's file has a row of differences, and its tool as a second source.

::

    backend = clone("acme", source="acml", library=("libacml.so", "/opt/acme/lib/libacml.so"),
                    spelling=(("nvml", "acml"),), tool=TOOL)

A metric whose call is missing from the installed library is ``not_supported``, as with an older NVIDIA driver. The tool is used if
the library is missing, and ``accelmetrics verify`` compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from glob import glob
from typing import Any

from accelmetrics.backends.built_in import BUILT_IN
from accelmetrics.backends.contract import Clock, Coverage, Driver
from accelmetrics.backends.kit.fields import joined_words
from accelmetrics.backends.kit.polled import PolledBackend
from accelmetrics.backends.kit.sources import SourcesBackend
from accelmetrics.backends.kit.system import PCI, find_pci, link_name
from accelmetrics.backends.nvidia import Maker, knows_loader
from accelmetrics.backends.nvidia.gpu import open_driver
from accelmetrics.backends.nvidia.metrics import coverage


def clone(name: str, *, library: Sequence[str], tool: PolledBackend, **differences: Any) -> SourcesBackend:
    """Make the backend of a vendor with an NVML-like library.

    Args:
        name: The name of its registration, which has its maker, PCI ids and device nodes.
        library: The library's file name, and where the vendor installs it; ``*`` matches part of a name.
        tool: The vendor's command.
        differences: The other attributes of its row (:class:`~accelmetrics.backends.nvidia.Maker`).
    """
    row = BUILT_IN[name]
    maker = Maker(
        name,
        brand=row.maker,
        vendor_id=row.pci[0].partition(":")[0],
        nodes=row.nodes[0],
        paths=lambda: (library[0], *(path for place in library[1:] for path in sorted(glob(place)))),  # noqa: PTH207 - of any depth
        is_installed=partial(knows_loader, library[0]),
        # Detection has the advice for missing device nodes.
        advise=lambda there: "" if there else f"install the {row.maker} driver, or name the folder of {library[0]} in LD_LIBRARY_PATH",
        devices=lambda: [address for address in find_pci(row.pci) if link_name(f"{PCI}/{address}/driver")],
        kind=str(row.kind),
        **differences,
    )

    def open_library(clock: Clock) -> Driver:
        return open_driver(clock, maker)

    def covered() -> Coverage:
        own = coverage(maker)
        return own._replace(devices=joined_words((*own.devices.items(), *tool.coverage().devices.items())))

    return SourcesBackend(name, str(row.kind), {maker.source: open_library, tool.name: tool}, coverage=covered)
