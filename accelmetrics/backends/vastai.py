"""Vastai cards, through ``vasmi``. Experimental.

The general form of its documents is known. One published program shows the names of a card's total memory, power and power limit. The names
of utilisation, temperature and memory in use are unknown, so they are not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from accelmetrics.backends.kit import POWER_SHARE, PRINTED, Command, DeviceSample, Field, PolledBackend, Source, json_document, quoted
from accelmetrics.schemas.errors import Reason, SourceError

INSTALL = "install Vastai's driver, which has vasmi"
FORMAT = "--display-format=json"


def parse(printed: str) -> Iterator[DeviceSample]:
    """Yield the elements of a document."""
    document = json_document(printed)
    listed = document.get("elem") if isinstance(document, Mapping) else None
    if not isinstance(listed, list):
        raise SourceError(Reason.PARSE_ERROR, f"vasmi printed no list of elements: {quoted(document)}")
    yield from map(DeviceSample, listed)


backend = PolledBackend(
    "vastai",
    kind="npu",
    source="vasmi getmem",
    connect=Command("vasmi", ("getmem", FORMAT), install=INSTALL).poll(parse),
    # The name differs between AI cards and 3D cards.
    fields=(Field("memoryTotalBytes", ("vals.physical", "vals.physical memory"), PRINTED),),
    identity={"pci_bus_id": "pci_bus", "serial": "sn"},
    interval=2.0,
    also=(
        Source(
            "vasmi summary",
            Command("vasmi", ("summary", FORMAT), install=INSTALL).poll(parse),
            (Field("powerWatts", "vals.p_cur", PRINTED), Field("enforcedPowerLimitWatts", "vals.p_cap", PRINTED), POWER_SHARE),
            identity={"pci_bus_id": "vals.devbusid"},
        ),
    ),
    advice="check whether vasmi lists any card, and whether the module vastai_pci is loaded",
    remark="experimental: its names are known from a single program, and it was never tested on a card",
)
