"""A device of any kind reaches the snapshot, typed views, validation, dialects, exporters, tables and recordings.

Its kind is a word that only its backend knows. It gives what devices of every kind may give, metrics of its own, and one that nothing
describes.
"""

from __future__ import annotations

import csv
import io
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from accelmetrics import Sampler, Snapshot
from accelmetrics.cli.formats import table
from accelmetrics.dialects.registry import dialect
from accelmetrics.exporters.console import ConsoleExporter
from accelmetrics.schemas.errors import DocumentError
from accelmetrics.schemas.metric import Metric
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.recording import recordings
from accelmetrics.schemas.vitals import vitals
from accelmetrics.testing import FakeBackend
from tests.support.exporting import export, exporting

KINDS = ("npu", "hpu", "dpu")
OWN = (
    Metric("{kind}.{i}.laneTemp", "Cel", "gauge", "Temperature of the hottest lane.", minimum=-273.15, maximum=150),
    Metric("{kind}.{i}.dmaBytesTotal", "By", "counter", "Bytes moved by DMA.", integer=True),
)
VALUES = {
    "utilization": 5.0,
    "temp": 40,
    "powerWatts": 100,
    "memoryAllocatedBytes": 2**20,
    "memoryTotalBytes": 2**30,
    "laneTemp": 61.5,
    "dmaBytesTotal": 4096,
    "wafers": 7,
}
POWER = {
    "wandb": "powerWatts",
    "prometheus": "accel_power_watts",
    "otel": "hw.power",
    "nvidia-smi": "power.draw",
    "verl": "power_usage_w",
    "training": "gpu_power_draw_watts",
    "dcgm": "DCGM_FI_DEV_POWER_USAGE",
}


def backend(kind: str) -> FakeBackend:
    made = FakeBackend("acme", kind)
    made.metrics += OWN
    made.device(0).set(**VALUES)
    return made


@pytest.fixture(params=KINDS)
def taken(request: pytest.FixtureRequest) -> Iterator[Snapshot]:
    with Sampler([backend(request.param)]) as sampler:
        yield sampler.sample()


def test_the_snapshot_has_it_and_reads_back(taken: Snapshot) -> None:
    (device,) = taken.devices
    assert device.values == VALUES
    again = Snapshot.from_json(taken.to_json())
    assert again == taken
    assert again.devices[0].kind == device.kind


def test_the_typed_view_has_what_every_kind_may_have(taken: Snapshot) -> None:
    view = taken.devices[0].metrics
    assert (view.power_watts, view.utilization, view.memory_total_bytes, view.fan_speed) == (100, 5.0, 2**30, None)


def test_its_own_metrics_are_held_to_their_bounds() -> None:
    """``ACCELMETRICS_VALIDATE=1``, under which every test runs, refuses the snapshot."""
    made = backend("npu")
    made.device(0).set(laneTemp=151)
    with Sampler([made]) as sampler, pytest.raises(DocumentError, match=r"npu\.0\.laneTemp = 151 is above 150"):
        sampler.sample()


@pytest.mark.parametrize("name", POWER)
def test_every_dialect_tells_its_power(taken: Snapshot, name: str) -> None:
    (value,) = [point.value for point in dialect(name).points(Record(taken)) if point.name.endswith(POWER[name])]
    assert value == 100


def test_prometheus_has_the_series_that_gpus_have_and_those_of_its_own(taken: Snapshot) -> None:
    """Names and help texts of its own metrics follow from their rows; what nothing describes is a plain gauge."""
    points = {point.name: point for point in dialect("prometheus").points(Record(taken))}
    key = taken.devices[0].key
    assert (points["accel_utilization_ratio"].value, points["accel_utilization_ratio"].labels["engine"]) == (0.05, "compute")
    assert points["accel_temperature_celsius"].labels["sensor"] == "core"
    assert (points["accel_lane_temp_celsius"].value, points["accel_lane_temp_celsius"].meaning) == (61.5, OWN[0].meaning)
    assert (points["accel_dma_bytes_total"].value, points["accel_dma_bytes_total"].kind) == (4096, "counter")
    assert (points["accel_wafers"].value, points["accel_wafers"].kind) == (7, "gauge")
    named = {"accel_utilization_ratio", "accel_lane_temp_celsius", "accel_wafers", "accel_up", "accel_info"}
    assert {points[name].labels["accelerator"] for name in named} == {key}


def test_opentelemetry_too(taken: Snapshot) -> None:
    points = {point.name: point for point in dialect("otel").points(Record(taken))}
    assert (points["accel.lane_temp"].value, points["accel.lane_temp"].unit) == (61.5, "Cel")
    assert (points["accel.memory.usage"].value, points["accel.memory.usage"].unit) == (2**20, "By")
    assert {point.labels["accelmetrics.device"] for point in points.values()} == {taken.devices[0].key}


def test_files_of_exporters_have_all_of_it(taken: Snapshot, tmp_path: Path) -> None:
    """Each of its metrics is on a line of JSON, in a column, a series and a field."""
    record, key = Record(taken), taken.devices[0].key
    for target in ("jsonl:run.jsonl", "csv:run.csv", "textfile:run.prom", "influx:run.lp", "training-files:."):
        name, _, file = target.partition(":")
        with exporting(f"{name}:{tmp_path / file}") as exporter:
            exporter.export(record)
            exporter.flush()
            if name == "textfile":
                served = (tmp_path / file).read_text()  # it goes when the exporter is closed
    (back,) = [one for recording in recordings(tmp_path / "run.jsonl") for one in recording]
    assert (back.snapshot.metrics, back.snapshot.unavailable) == (taken.metrics, taken.unavailable)
    assert [device.identity for device in back.snapshot.devices] == [device.identity for device in taken.devices]
    (row,) = csv.DictReader(io.StringIO((tmp_path / "run.csv").read_text()))
    assert {name: float(row[f"{key}.{name}"]) for name in VALUES} == VALUES
    assert "# HELP accel_lane_temp_celsius Temperature of the hottest lane." in served
    assert f'accel_wafers{{accelerator="{key}"' in served
    (line,) = [line for line in (tmp_path / "run.lp").read_text().splitlines() if line.startswith(f"{key.partition('.')[0]},")]
    assert "dmaBytesTotal=4096i" in line
    (path,) = tmp_path.glob("gpu_metrics_*.jsonl")
    assert json.loads(path.read_text())["power_draw_watts"] == 100


def test_statsd_has_its_gauges(taken: Snapshot) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(30)
        export(f"statsd:127.0.0.1:{receiver.getsockname()[1]}", Record(taken))
        lines = receiver.recv(65536).decode().split("\n")
    assert f"accelmetrics.{taken.devices[0].key}.laneTemp:61.5|g" in lines


def test_people_see_it(taken: Snapshot) -> None:
    """In the table of ``dump``, on the line of the console and in what ``watch`` draws."""
    key = taken.devices[0].key
    text = table(taken, 100)
    assert "Device: Power" in text
    assert all(name in text for name in VALUES)
    line = io.StringIO()
    export(ConsoleExporter(stream=line), Record(taken))
    assert key.upper().replace(".", "") in line.getvalue()
    (shown,) = vitals(taken)
    assert (shown.utilization, shown.power, shown.memory_used, shown.temperature) == (5.0, 100, 2**20, 40)
