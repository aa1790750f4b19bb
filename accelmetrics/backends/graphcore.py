"""Graphcore IPUs, through the vendor's Python module ``gcipuinfo``.

The module comes with the Poplar SDK, not from PyPI. One call lists every IPU with its attributes, printed as text with a unit
(``17.8 C``, ``20MHz``); ``N/A`` says that a board has no such sensor. IPUs of an IPU-Machine are reached over the network and show
neither on the PCI bus nor below ``/dev``. Read on a stand-in only, never yet on a real IPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from accelmetrics.backends.kit import PRINTED, DeviceSample, Field, PolledBackend, PollOnce, import_library, quoted, text, whole
from accelmetrics.backends.kit.library import loading_failure
from accelmetrics.schemas.errors import Reason, SourceError
from accelmetrics.schemas.identity import DeviceProcess

BOARD = "board serial number"
"""The attribute that the IPUs of one board share."""
USER = "user process id"
"""The attribute that an idle IPU does not have."""
INSTALL = (
    "gcipuinfo comes with Graphcore's Poplar SDK and not from PyPI: enable the SDK in this shell (source <sdk>/enable), or pip install "
    "the gcipuinfo wheel of the SDK for this Python"
)
REINSTALL = "enable the Poplar SDK in this shell (source <sdk>/enable), and take the gcipuinfo of that SDK and for this Python"
PARTITION = "see whether gc-info --list-devices lists any: on an IPU-Machine a partition must exist (IPUOF_VIPU_API_PARTITION_ID)"

FIELDS = (
    Field("average board temp (C)", "average board temp", PRINTED),
    Field("average die temp (C)", "average die temp", PRINTED),
    Field("clock (MHz)", "clock", PRINTED),
    Field("ipu power (W)", "ipu power", PRINTED),
    Field("total board power (W)", "total board power", PRINTED, high=20_000, of_whole=True),
    Field("ipu utilisation (%)", "ipu utilisation", PRINTED, in_use=True),
    Field("ipu utilisation (session) (%)", "ipu utilisation (session)", PRINTED, in_use=True),
    Field("link speed (GT/s)", "link speed", PRINTED),
)
IDENTITY = {
    "vendor_index": "id",
    "name": "board type",
    "pci_bus_id": "pci id",
    "serial": BOARD,
    "architecture": "ipu architecture",
    "driver_version": "driver version",
    "firmware": "firmware version",
    "numa_node": "numa node",
}


def connect() -> PollOnce:
    """Import the module and open its list of devices."""
    try:
        module = import_library("gcipuinfo")
    except (ImportError, OSError) as error:
        failure = loading_failure("gcipuinfo", error)
        if failure is not None:
            raise SourceError(*failure, advice=REINSTALL) from error
        raise SourceError(Reason.DRIVER_UNAVAILABLE, f"import gcipuinfo: {error}", advice=INSTALL) from error
    library = module.gcipuinfo()
    library.setUpdateMode(True)  # or every later call answers what was read at first

    def poll() -> Iterable[DeviceSample]:
        answer = library.getDevices()
        if not isinstance(answer, (list, tuple)):
            raise SourceError(Reason.PARSE_ERROR, f"gcipuinfo.getDevices() answered no list of devices: {quoted(answer)}")
        return map(_sample, answer)

    return poll


def _sample(device: Any) -> DeviceSample:
    if not isinstance(device, Mapping):
        return DeviceSample(device)  # which the kit refuses, and lists the others
    user = device.get(USER)
    pid = whole(user)
    # One process holds an IPU, or none; an attribute that makes no sense says nothing.
    processes = (DeviceProcess(pid, "compute"),) if pid else None if text(user) else ()
    return DeviceSample(dict(device), processes, whole=text(device.get(BOARD)))


backend = PolledBackend(
    "graphcore", kind="ipu", source="gcipuinfo", connect=connect, fields=FIELDS, identity=IDENTITY, exclusive=True, advice=PARTITION
)
