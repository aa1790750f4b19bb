"""``dcgm``: the metrics of dcgm-exporter with its labels, so that dashboards and alerts made for it show devices of any vendor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from accelmetrics.dialects.contract import Number, Point
from accelmetrics.dialects.dcgm_fields import BEYOND, DEFAULT
from accelmetrics.dialects.series import series
from accelmetrics.dialects.tables import Table, parent_and_partition
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.snapshot import DeviceSlot

_PROFILE = " MIG "
"""What stands before a partition's profile in its name: ``NVIDIA H100 80GB HBM3 MIG 3g.40gb``."""


class Dcgm:
    """What dcgm-exporter would serve."""

    name = "dcgm"
    summary = "the metrics of NVIDIA's dcgm-exporter with its labels: DCGM_FI_DEV_GPU_UTIL"

    def __init__(self) -> None:
        self._table = Table((*DEFAULT, *BEYOND))

    def flat(self, record: Record) -> dict[str, Number | None]:
        """Series with the label that tells devices of one machine apart: ``DCGM_FI_DEV_GPU_TEMP{gpu="0"}``."""
        found: dict[str, Number | None] = {}
        for place in record.snapshot.identities:
            whole, partition = parent_and_partition(place)
            labels = {"gpu": whole, "GPU_I_ID": partition} if partition else {"gpu": whole}
            for told in self._table.told(record.snapshot, place):
                found[series(told.entry.name, labels)] = told.value
        return found

    def points(self, record: Record) -> Iterator[Point]:
        """Each field of each device with the exporter's labels."""
        parents = {place.key: place for place in record.snapshot.identities}
        for place in record.snapshot.identities:
            whole, _ = parent_and_partition(place)
            labels = _labels(place, parents.get(f"gpu.{whole}", place), record.snapshot.hostname)
            for told in self._table.told(record.snapshot, place):
                yield Point(told.entry.name, told.value, labels, told.kind, told.unit, told.meaning)


@lru_cache(maxsize=1024)
def _labels(place: DeviceSlot, parent: DeviceSlot, hostname: str) -> Mapping[str, str]:
    """Not to be changed. A partition has the labels of its GPU, and two of its own.

    The exporter wrote ``Hostname`` up to 4.5 and writes ``hostname`` since; both are given.
    """
    who = parent.identity
    whole, partition = parent_and_partition(place)
    labels = {
        "gpu": whole,
        "UUID": who.uuid or who.pci_bus_id or parent.key,
        "pci_bus_id": who.pci_bus_id,
        "device": f"{who.vendor}{who.vendor_index}",
        "modelName": who.name,
        "GPU_I_PROFILE": place.identity.name.rpartition(_PROFILE)[2] if partition else "",
        "GPU_I_ID": partition,
        "Hostname": hostname,
        "hostname": hostname,
        "DCGM_FI_DRIVER_VERSION": who.driver_version,
    }
    return {label: value for label, value in labels.items() if value}


DCGM = Dcgm()
