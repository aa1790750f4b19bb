"""Graphcore IPUs, through the vendor's Python module ``gcipuinfo``.

The module is part of the Poplar SDK and is not on PyPI. One call lists all IPUs with their attributes, printed as text with a unit (``17.8
C``, ``20MHz``); ``N/A`` means that a board has no such sensor. The IPUs of an IPU-Machine are connected by network, so they appear neither
on the PCI bus nor below ``/dev``. Tested with a stand-in only, never on a real IPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from accelmetrics.backends.kit import PRINTED, DeviceSample, Field, PolledBackend, PollOnce, import_library, quoted, text, whole
from accelmetrics.backends.kit.library import loading_failure
from accelmetrics.schemas.errors import Reason, SourceError
from accelmetrics.schemas.identity import DeviceProcess

BOARD = "board serial number"
"""Attribute that the IPUs of one board share."""
USER = "user process id"
"""Attribute that an idle IPU does not have."""
INSTALL = (
    "gcipuinfo comes with Graphcore's Poplar SDK and not from PyPI: enable the SDK in this shell (source <sdk>/enable), or pip install "
    "the gcipuinfo wheel of the SDK for this Python"
)
REINSTALL = "enable the Poplar SDK in this shell (source <sdk>/enable), and take the gcipuinfo of that SDK and for this Python"
PARTITION = "check whether gc-info --list-devices lists any: on an IPU-Machine a partition must exist (IPUOF_VIPU_API_PARTITION_ID)"

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
    """Import the module and return a poll of its devices.

    Raises:
        SourceError: The module is missing or cannot be imported.
    """
    try:
        module = import_library("gcipuinfo")
    except (ImportError, OSError) as error:
        failure = loading_failure("gcipuinfo", error)
        if failure is not None:
            raise SourceError(*failure, advice=REINSTALL) from error
        raise SourceError(Reason.DRIVER_UNAVAILABLE, f"import gcipuinfo: {error}", advice=INSTALL) from error
    library = module.gcipuinfo()
    library.setUpdateMode(True)  # without it every later call repeats the first answer

    def poll() -> Iterable[DeviceSample]:
        answer = library.getDevices()
        if not isinstance(answer, (list, tuple)):
            raise SourceError(Reason.PARSE_ERROR, f"gcipuinfo.getDevices() answered no list of devices: {quoted(answer)}")
        return map(_sample, answer)

    return poll


def _sample(device: Any) -> DeviceSample:
    if not isinstance(device, Mapping):
        return DeviceSample(device)  # the kit rejects it and keeps the other devices
    user = device.get(USER)
    pid = whole(user)
    # At most one process holds an IPU. If the attribute is malformed, the processes are unknown.
    processes = (DeviceProcess(pid, "compute"),) if pid else None if text(user) else ()
    return DeviceSample(dict(device), processes, whole=text(device.get(BOARD)))


# `exclusive`: one process holds an IPU at a time.
backend = PolledBackend(
    "graphcore", kind="ipu", source="gcipuinfo", connect=connect, fields=FIELDS, identity=IDENTITY, exclusive=True, advice=PARTITION
)
