"""OpenTelemetry's names, held against the conventions as their own Python package has them."""

from __future__ import annotations

import importlib
import re

import pytest

from accelmetrics.dialects.otel import OTEL, SCHEMA_URL, SEMCONV_VERSION, UPDOWNCOUNTERS, _series, machine_points
from accelmetrics.dialects.registry import dialect
from accelmetrics.schemas.catalogue import CATALOGUE, given_by
from accelmetrics.schemas.coverage import KINDS
from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.identity import DeviceIdentity, DeviceSlot
from accelmetrics.schemas.metric import Metric, split_series
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.snapshot import Snapshot
from tests.records import record

CONVENTIONS = "opentelemetry.semconv._incubating.metrics"
CONVENTIONAL = ("hw.", "system.", "process.")
ROWS = [row for row in CATALOGUE if row.otel]


def concrete(row: Metric, kind: str = "gpu") -> str:
    """A key as it might stand in a snapshot."""
    return re.sub(r"\{\w+\}", "3", row.key.replace("{kind}", kind))


def convention(name: str) -> tuple[str, str]:
    """Instrument and unit that the conventions give a metric."""
    module = importlib.import_module(f"{CONVENTIONS}.{name.partition('.')[0]}_metrics")
    variable = name.upper().replace(".", "_")
    assert getattr(module, variable) == name
    source = module.__loader__.get_source(module.__name__)  # type: ignore[union-attr]
    found = re.search(rf'^{variable}: Final = "[^"]+"\n""".*?^Instrument: (\w+)\nUnit: (\S+)$', source, re.MULTILINE | re.DOTALL)
    assert found is not None, name
    return found[1], found[2]


def ours(row: Metric) -> tuple[str, str]:
    """Instrument and unit under which the dialect gives a row."""
    series = _series(concrete(row))
    assert series is not None
    point = series.point
    return ("updowncounter" if point.name in UPDOWNCOUNTERS else str(point.kind)), point.unit


def a_gpu(key: str = "gpu.0", **about: str) -> DeviceSlot:
    return DeviceSlot(key, 0, 0, DeviceIdentity("gpu", "nvidia", 0, **about))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted({row.otel.partition("{")[0] for row in ROWS if row.otel.startswith(CONVENTIONAL)}))
def test_names_in_the_conventions_name_space_are_theirs(name: str) -> None:
    """Whatever begins with ``hw.``, ``system.`` or ``process.`` exists in the conventions, with their instrument and unit."""
    for row in ROWS:
        if row.otel.partition("{")[0] == name:
            assert ours(row) == convention(name)


def test_everything_else_is_in_our_own_name_space() -> None:
    """What the conventions do not have is under ``accel.``: no name is invented in theirs."""
    rest = [row.otel for row in ROWS if not row.otel.startswith(CONVENTIONAL)]
    assert rest and all(name.startswith("accel.") for name in rest)


def test_attributes_are_the_conventions_or_in_a_name_space_of_our_own() -> None:
    """Every attribute exists in the conventions or begins with ``accelmetrics.``, whichever series it is on."""
    from opentelemetry.semconv import _incubating

    devices = [DeviceSlot("gpu.0", 0, 0, DeviceIdentity("gpu", "nvidia", 0, *("x",) * 5, driver_version="x", firmware="x", parent="x"))]
    points = list(machine_points(Snapshot(1, "h", {concrete(row): 1 for row in ROWS}, devices)))
    names = {name for point in points for name in point.labels} | {name for row in ROWS for name in split_series(row.otel)[1]}
    foreign = {name for name in names if not name.startswith("accelmetrics.")}
    assert {"hw.id", "hw.firmware_version", "error.type", "network.io.direction"} <= foreign
    for name in foreign:
        module = name.partition(".")[0]
        attributes = importlib.import_module(f"{_incubating.__name__}.attributes.{module}_attributes")
        assert name in vars(attributes).values(), name


def test_a_process_is_told_under_the_conventions_name_by_mode_alone() -> None:
    """``process.cpu.utilization`` requires ``cpu.mode``, which the sum of all modes has not: that has a name of our own."""
    metrics = {"cpu": 50.0, "proc.cpu.userPercent": 37.5, "proc.cpu.systemPercent": 12.5}
    points = list(machine_points(Snapshot(1, "h", metrics)))
    assert [point.value for point in points if point.name == "accel.process.cpu.utilization"] == [0.5]
    modes = {point.labels["cpu.mode"]: point.value for point in points if point.name == "process.cpu.utilization"}
    assert modes == {"user": 0.375, "system": 0.125}


def test_errors_of_a_device_s_life_are_in_no_sum_of_errors() -> None:
    """``hw.errors`` holds what the driver counted since it was loaded, once; the totals over the device's life stand apart."""
    values: dict[str, int | float] = {
        "gpu.0.correctedMemoryErrors": 2,
        "gpu.0.correctedMemoryErrorsAggregate": 90,
        "gpu.0.uncorrectedMemoryErrors": 1,
        "gpu.0.uncorrectedMemoryErrorsAggregate": 7,
    }
    points = list(machine_points(Snapshot(1, "h", values, [a_gpu()])))
    told = {(point.name, point.labels["error.type"]): point.value for point in points if "error.type" in point.labels}
    assert told == {
        ("hw.errors", "corrected"): 2,
        ("hw.errors", "uncorrected"): 1,
        ("accel.memory.errors.lifetime", "corrected"): 90,
        ("accel.memory.errors.lifetime", "uncorrected"): 7,
    }


def test_what_a_device_is_goes_with_each_of_its_series() -> None:
    """Serial number, firmware and driver stand in the conventions' attributes, where they are known."""
    board = a_gpu(serial="1650522003820", firmware="96.00.74.00.01", driver_version="570.124.06")
    (power, *_) = machine_points(Snapshot(1, "h", {"gpu.0.powerWatts": 300.0}, [board]))
    assert (
        power.labels.items()
        >= {"hw.serial_number": "1650522003820", "hw.firmware_version": "96.00.74.00.01", "hw.driver_version": "570.124.06"}.items()
    )


def test_the_version_is_one_that_the_conventions_published() -> None:
    """The schema URL names a published version, and is said in one place."""
    from opentelemetry.semconv.schemas import Schemas

    assert SCHEMA_URL in {schema.value for schema in Schemas}
    assert SCHEMA_URL.endswith(SEMCONV_VERSION)


def test_units_are_base_units() -> None:
    """No percentage, no MiB, no MHz, no microsecond is left under OpenTelemetry's names."""
    for row in ROWS:
        assert ours(row)[1] in {"1", "By", "By/s", "W", "J", "Cel", "Hz", "s", "{transfer}/s", "{error}", "{thread}", "rpm"}, row.key


@pytest.mark.parametrize("kind", ["gpu", "tpu", "trn", "ipu", "npu"])
def test_no_two_keys_of_a_device_become_one_series(kind: str) -> None:
    """The attributes of the catalogue tell every two metrics of one device apart."""
    found: dict[object, str] = {}
    for row in ROWS:
        given = {KINDS[backend] for backend in given_by().get(row.key, ())} or {"npu"}
        if row.device_part in (f"{kind}.{{i}}", "{kind}.{i}") and (kind in given or kind == "npu"):
            series = _series(concrete(row, kind))
            assert series is not None
            same = (series.point.name, series.device, *sorted(series.point.labels.items()))
            assert found.setdefault(same, row.key) == row.key


def test_hardware_always_has_an_id() -> None:
    """Every ``hw.*`` point has the required ``hw.id``, that of the host's processors and chips too."""
    metrics: dict[str, int | float] = {concrete(row): 1 for row in ROWS if row.otel.startswith("hw.")}
    places = [DeviceSlot(f"{kind}.3", 3, 3, DeviceIdentity(kind, "acme", 3, uuid=f"{kind.upper()}-1")) for kind in ("gpu", "tpu", "ipu")]
    points = [point for point in machine_points(Snapshot(1, "h", metrics, places)) if point.name.startswith("hw.")]
    assert len(points) >= len(metrics)
    assert [point.name for point in points if not point.labels.get("hw.id")] == []
    needing = {"hw.power", "hw.energy", "hw.errors", "hw.status"}
    assert [point.name for point in points if point.name in needing and not point.labels.get("hw.type")] == []


def test_the_id_is_uuid_then_address_then_key() -> None:
    """A device without a UUID is told apart by its PCI address, without that by its key; what it lacks is left out."""
    bare, by_address = a_gpu(), a_gpu("gpu.1", pci_bus_id="00000000:C1:00.0")
    metrics: dict[str, int | float] = {"gpu.0.powerWatts": 1, "gpu.1.powerWatts": 2}
    points = [point for point in machine_points(Snapshot(1, "h", metrics, [bare, by_address])) if point.name == "hw.power"]
    assert [point.labels["hw.id"] for point in points] == ["gpu.0", "00000000:C1:00.0"]
    assert set(points[0].labels) == {"hw.id", "hw.name", "hw.vendor", "accelmetrics.device", "hw.type"}


def test_a_partition_names_its_parent() -> None:
    """What belongs to a partition carries the partition's id, and its board's as ``hw.parent``."""
    board = a_gpu(uuid="GPU-1")
    part = a_gpu("gpu.0.mig.1", uuid="MIG-1", parent="GPU-1")
    points = list(machine_points(Snapshot(1, "h", {"gpu.0.mig.1.memoryAllocatedBytes": 5}, [board, part])))
    assert points[0].labels.items() >= {"hw.id": "MIG-1", "hw.parent": "GPU-1", "accelmetrics.device": "gpu.0.mig.1"}.items()


@pytest.mark.parametrize(
    ("metrics", "reasons", "state"),
    [
        ({"gpu.0.temp": 40}, {}, "ok"),
        ({"gpu.0.temp": 40}, {"gpu.0.fanSpeed": Reason.NOT_SUPPORTED}, "ok"),
        ({"gpu.0.temp": 40}, {"gpu.0.powerWatts": Reason.DRIVER_ERROR}, "degraded"),
        ({}, {"gpu.0.temp": Reason.DEVICE_LOST, "gpu.0.fanSpeed": Reason.DEVICE_LOST}, "failed"),
        ({}, {"gpu.0.temp": "a_reason_of_a_newer_release"}, "failed"),
        ({}, {"gpu.0.temp": Reason.SUSPENDED}, "ok"),
        ({}, {"gpu.0.temp": Reason.NO_PERMISSION}, "ok"),
    ],
)
def test_the_state_of_a_device(metrics: dict[str, int | float], reasons: dict[str, str], state: str) -> None:
    """``hw.status`` has one point per state, 1 for the one that holds; a device that is asleep is not broken."""
    why = {key: Unavailable(reason) for key, reason in reasons.items()}
    points = [point for point in machine_points(Snapshot(1, "h", metrics, [a_gpu()], why)) if point.name == "hw.status"]
    assert {point.labels["hw.state"]: point.value for point in points} == {one: int(one == state) for one in ("ok", "degraded", "failed")}
    assert all(point.labels["hw.type"] == "gpu" for point in points)


def test_instances_become_attributes() -> None:
    """What stands in a key for a disk, a CPU, a link or a program is an attribute's value, and none is left as a placeholder."""
    keys: dict[str, int | float] = {
        "disk./data.usageGB": 1,
        "cpu.12.cpu_percent": 50,
        "gpu.0.nvlink.7.txBytesTotal": 8,
        "tpu.hloQueueSize.core-1": 2,
    }
    points = {point.name: point for point in machine_points(Snapshot(1, "h", keys, [a_gpu()]))}
    assert points["system.filesystem.usage"].labels["system.filesystem.mountpoint"] == "/data"
    assert points["system.filesystem.usage"].value == 2**30
    assert points["system.cpu.utilization"].labels == {"cpu.logical_number": "12"}
    assert points["accel.link.port.io"].labels["accelmetrics.link"] == "7"
    assert points["accel.program.queue.length"].labels["accelmetrics.label"] == "core-1"
    for row in ROWS:
        series = _series(concrete(row))
        assert series is not None and not any("{" in value for value in series.point.labels.values()), row.key


def test_percentages_divide_exactly() -> None:
    """70 % is 0.7, not 0.7000000000000001."""
    assert OTEL.flat(Record(Snapshot(1, "h", {"gpu.0.gpu": 70}, [])))['hw.gpu.utilization{hw.gpu.task="general"}'] == 0.7


def test_what_the_conventions_have_for_gpus_alone_is_under_our_own_names_of_other_devices() -> None:
    """``hw.gpu.memory.usage`` is no NPU's; power and temperature have names for all hardware."""
    place = DeviceSlot("npu.0", 0, 0, DeviceIdentity("npu", "acme", 0, uuid="NPU-1"))
    values: dict[str, int | float] = {
        "npu.0.memoryAllocatedBytes": 5,
        "npu.0.powerWatts": 75.5,
        "npu.0.utilization": 50.0,
        "npu.0.temp": 40,
    }
    points = {point.name: point for point in machine_points(Snapshot(1, "h", values, [place]))}
    assert (points["accel.memory.usage"].value, points["accel.memory.usage"].unit) == (5, "By")
    assert points["accel.utilization"].labels["accelmetrics.engine"] == "compute"
    assert (points["hw.power"].value, points["hw.power"].labels["hw.type"]) == (75.5, "npu")
    assert points["hw.temperature"].labels["hw.id"] == "NPU-1"


def test_what_only_a_plug_in_knows_goes_out_as_it_is() -> None:
    """A key that the catalogue does not have is under ``accel.`` with its device's attributes; one of no device is left out."""
    place = DeviceSlot("npu.0", 0, 0, DeviceIdentity("npu", "acme", 0, uuid="NPU-1"))
    points = list(machine_points(Snapshot(1, "h", {"npu.0.aiCoreUtil": 12.5, "unheard.of": 1}, [place])))
    measured = [point for point in points if point.name != "hw.status"]
    assert [(point.name, point.value, point.labels["hw.id"]) for point in measured] == [("accel.ai_core_util", 12.5, "NPU-1")]


def test_flat_spells_series_in_one_word() -> None:
    """``--keys otel`` gives each series a name of its own, with the device's key for all that is said of the device."""
    flat = dialect("otel").flat(record(2))
    assert flat['hw.power{accelmetrics.device="gpu.1",hw.type="gpu"}'] == 70.0
    assert flat["accel.training.loss"] == 0.25
    assert flat['accelmetrics.exporter.dropped{accelmetrics.exporter="jsonl"}'] == 1
    assert len(flat) == len(list(OTEL.points(record(2))))
