"""Every form of output that the kit parses, mutated, through a vendor that is written as a third party's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest

from accelmetrics.backends.kit import (
    MEMORY,
    Command,
    DeviceSample,
    Field,
    PolledBackend,
    Rate,
    figure,
    grouped,
    json_document,
    number,
    rows,
    sections,
    table,
    whole,
    with_units,
    xml_records,
)
from accelmetrics.schemas.identity import DeviceProcess
from tests.backends.kit.test_parsing import BY_INDENTATION, TWO_LINES
from tests.support.fuzzing import fuzz

Parse = Callable[[str], Iterable[DeviceSample]]


def by_table(text: str) -> Iterator[DeviceSample]:
    processes = grouped(table(text, r"ID\s+PID", wrapped=True), "ID")
    for record in table(text, r"ID\s+Name"):
        its = processes.get(record["ID"], [])
        memory = [number(each["Memory Usage"], "MiB", "By") for each in its]
        used = [each if isinstance(each, int) else None for each in memory]
        listed = ((whole(each["PID"]), bytes_) for each, bytes_ in zip(its, used, strict=True))
        yield DeviceSample(record, tuple(DeviceProcess(pid, "compute", bytes_) for pid, bytes_ in listed if pid))


def by_heading(text: str) -> Iterator[DeviceSample]:
    return map(DeviceSample, rows(text))


def by_section(text: str) -> Iterator[DeviceSample]:
    return (DeviceSample(with_units(each)) for each in sections(text, r"XPU (?P<bdf>\S+)$"))


def by_id(text: str) -> Iterator[DeviceSample]:
    return (DeviceSample(with_units(each)) for each in sections(text, ends=r"\s*Chip ID\s*:\s*(?P<chip>\d+)"))


def by_tag(text: str) -> Iterator[DeviceSample]:
    return map(DeviceSample, xml_records(text, "npu"))


def by_key(text: str) -> Iterator[DeviceSample]:
    return map(DeviceSample, json_document(text)["devices"])


CSV = "index, uuid, power.draw [W], memory.total [MiB], memory.used [MiB]\n0, GPU-0, 61.5, 98304, 512\n1, GPU-1, N/A, 98304, 0\n"
CLOSED = "\tPower(W) : 61\n\tTemperature(C) : 40\n\tHBM(MB) : 65536\n\tChip ID : 0\n\n\tPower(W) : NA\n\tHBM(MB) : 1\n\tChip ID : 1\n"
XML = """\
<?xml version="1.0" ?>
<!DOCTYPE log SYSTEM "acme.dtd">
<log><driver_version>5.0</driver_version>
<npu id="00000000:3A:00.0"><memory><total>98304 MiB</total><used>68 MiB</used></memory><temp>35 C</temp><power>61 W</power>
<link>16x</link><energy>123456 mJ</energy></npu>
<npu id="00000000:3B:00.0"><memory><total>98304 MiB</total><used>68 MiB</used></memory><temp>N/A</temp><power>59.5 W</power></npu>
</log>
"""
JSON = """\
WARNING: slow
{"devices": [{"id": 0, "uuid": "a", "power": {"value": 61, "unit": "W"}, "memory": {"total": "98304MiB", "used": 12}, "energy": "900 J"},
{"id": 1, "uuid": "b", "power": "N/A", "memory": null, "temp": [40, 41]}], "driver": "5.0"}
"""


@pytest.mark.parametrize(
    ("parse", "fields", "identity", "sample"),
    [
        (
            by_table,
            (
                *(
                    Field("temp", "Temp", "C"),
                    Field("powerWatts", "Pwr:Usage/Cap.0", "W"),
                    Field("enforcedPowerLimitWatts", "Pwr:Usage/Cap.1", "W"),
                ),
                *(Field("memoryAllocatedBytes", "Memory-Usage.0", "MiB"), Field("memoryTotalBytes", "Memory-Usage.1", "MiB"), *MEMORY),
                Field("gpu", "Util", "%"),
            ),
            {"vendor_index": "ID", "pci_bus_id": "Bus-Id", "name": "Name"},
            TWO_LINES,
        ),
        (
            by_heading,
            (Field("powerWatts", "power.draw", "W"), Field("memoryTotalBytes", "memory.total", "MiB")),
            {"vendor_index": "index", "uuid": "uuid"},
            CSV,
        ),
        (
            by_section,
            (
                Field("gpu", "Utilization.Xpu", "%"),
                Field("temp", "XPU Current Temp", "C"),
                Field("memoryTotalBytes", "Memory Usage.Total", "MiB"),
            ),
            {"pci_bus_id": "bdf", "name": "Product Name"},
            BY_INDENTATION,
        ),
        (
            by_id,
            (Field("powerWatts", "Power", "W"), Field("temp", "Temperature", "C"), Field("memoryTotalBytes", "HBM", "MiB")),
            {"vendor_index": "chip"},
            CLOSED,
        ),
        (
            by_tag,
            (
                *(Field("powerWatts", "power", "W"), Field("temp", "temp", "C"), Field("memoryTotalBytes", "memory.total", "MiB")),
                *(Field("memoryAllocatedBytes", "memory.used", "MiB"), *MEMORY, Field("pcieLinkWidth", "link", convert=figure)),
            ),
            {"pci_bus_id": "@id", "driver_version": "driver_version"},
            XML,
        ),
        (
            by_key,
            (
                *(Field("powerWatts", "power", "W"), Field("memoryTotalBytes", "memory.total", "MiB"), Field("temp", "temp.0", "C")),
                *(Field("memoryAllocatedBytes", "memory.used", "MiB"), *MEMORY, Rate("powerWatts", "energy", "J")),
            ),
            {"vendor_index": "id", "uuid": "uuid"},
            JSON,
        ),
    ],
    ids=["table", "csv", "sections", "closed", "xml", "json"],
)
def test_fuzz(parse: Parse, fields: tuple[Field | Rate, ...], identity: dict[str, str], sample: str) -> None:
    connect = Command("acme-smi").poll(parse)
    fuzz(PolledBackend("acme", kind="gpu", source="acme-smi", connect=connect, fields=fields, identity=identity), parse, sample)
