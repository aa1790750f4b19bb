"""A scrape's text with numbers replaced is, byte for byte, the one that ``prometheus_client`` writes of the same points."""

from __future__ import annotations

import gzip
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings, strategies as st

from accelmetrics import Sampler
from accelmetrics.dialects import registry as dialects
from accelmetrics.dialects.contract import Distribution, Number, Point
from accelmetrics.dialects.health import health
from accelmetrics.dialects.prometheus import PROMETHEUS, process_points, step_points
from accelmetrics.exporters.scrape_cache import DROPPED, MAX_SERIES, Exposition, ScrapeCache, TextTemplate
from accelmetrics.exporters.textfile import TextfileExporter
from accelmetrics.schemas import catalogue
from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.identity import BackendStatus, DeviceIdentity, DeviceProcess, DeviceSlot
from accelmetrics.schemas.metric import ANY_KIND, CODE, LINK, Metric
from accelmetrics.schemas.record import ExporterStatus, Finding, Findings, Holder, Holders, MonitorStatus, Record, Step
from accelmetrics.schemas.snapshot import Snapshot
from tests.dialects import scenes
from tests.simulators.nvml import NvmlSimulator, Process
from tests.support.exporting import exporting

NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70),
    st.integers(-200, 200),
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(9e5, 2e15).map(float.__floor__),
    st.sampled_from((0.0, -0.0, 0, 1e6, 1e15, 1e15 - 1, 1e15 + 1, 999999.9, -1e6, 1e-5, 5e-324, 1e16, 1e21, 2**53 + 1, True)),
)
"""Also those whose text depends on how it is written: 1e+06, -0.0, what no float holds exactly."""
ODD = {'disk./mnt/a b%s\\"\u2028\x85.usageGB': 1.5, "disk./d\udcff.usageGB": 2.0}
"""Of mount points that hold what formats, lines and quotes are made of."""
MEASURED = st.one_of(
    st.integers(-(2**63), 2**64), st.integers(-200, 200), st.floats(-1e15, 1e15), st.sampled_from((0.0, -0.0, 1e6, 2**53 + 1))
)
"""What conversions take without overflow, as what was read is checked to be."""
KINDS = ("gpu", "tpu", "trn", "ipu", "npu")
RECENT = time.time_ns()


def slots() -> tuple[DeviceSlot, ...]:
    """Devices of all vendors, a partition among them."""
    whole = (scenes.nvidia(0), scenes.nvidia(1), scenes.amd(2), scenes.tpu(0))
    others = (("trn", "aws"), ("ipu", "graphcore"), ("npu", "rebellions"))
    return (
        *whole,
        scenes.instance(whole[0], 1, 7),
        *(DeviceSlot(f"{kind}.0", 0, None, DeviceIdentity(kind, vendor, 0, f"{vendor} one")) for kind, vendor in others),
    )


def some_keys() -> list[str]:
    """A few of all keys, and some that are named here."""
    return [*all_keys()[::15], "gpu.0.powerWatts", "gpu.0.temp", "gpu.0.mig.1.gpu", "gpu.0.throttle.swPowerCap", "gpu.0.xid.79.errors"]


def all_keys() -> list[str]:
    """Every key of the catalogue on every kind of device, and some that it does not have."""
    of_kinds = {row.key.replace(ANY_KIND, kind) for row in catalogue.rows() for kind in KINDS}
    keys = sorted(key.replace("{i}", "0").replace(LINK, "3").replace(CODE, "79").replace("{", "").replace("}", "") for key in of_kinds)
    more = [key.replace("gpu.0.", f"gpu.{where}.") for key in keys if key.startswith("gpu.0.") for where in ("1", "2", "0.mig.1")]
    return [*keys, *more, *ODD, "gpu.0.mystery", "gpu.9.powerWatts", "what.is.this"]


def written_anew(cache: ScrapeCache, openmetrics: bool = False, max_series: int = MAX_SERIES, processes: int = 0) -> bytes:
    """What the latest record of a cache is as a text that owes nothing to the ones before it."""
    latest = cache._latest
    assert latest.record is not None
    points = list(health(latest.record, latest.history, fresh=True))
    if cache._dialect is PROMETHEUS:
        found = list(PROMETHEUS.points(latest.record))[len(list(health(latest.record))) :]  # health is told above
    else:
        found = list(latest.points if latest.points is not None else cache._dialect.points(latest.record))
    points += [point for point in found if not point.name.startswith(cache._left_out)]
    points += [*step_points(latest.steps), *process_points(latest.record.snapshot, processes, latest.of_processes)]
    exposition = Exposition(points, max_series)
    exposition.add(DROPPED._replace(value=cache._dropped))
    return exposition.text(openmetrics)


def taken(number: int, metrics: dict[str, Number], **changes: Any) -> Snapshot:
    """A reading."""
    parts: dict[str, Any] = {
        "identities": slots(),
        "backends": (BackendStatus("nvidia", "ok", "", "nvml", 0.001 * number, age_seconds=0.0, sequence=number + 1, devices=3),),
        **changes,
    }
    return Snapshot(RECENT + number, "node-1", metrics, **parts)


# Equal, whatever the numbers


@pytest.mark.parametrize("dialect", dialects.names())
@settings(max_examples=3, deadline=None, phases=(Phase.generate,))
@given(st.data())
def test_every_dialect_serves_what_the_library_writes(dialect: str, data: st.DataObject) -> None:
    """Over records whose numbers alone differ, of all vendors' devices, in both formats, packed and not."""
    cache, keys = ScrapeCache(dialect, max_age=math.inf, per_link=data.draw(st.booleans())), all_keys()
    for number in range(3):
        few = data.draw(st.lists(MEASURED, min_size=7, max_size=7))
        metrics = {key: few[place % 7] for place, key in enumerate(keys)}
        cache.take(Record(taken(number, metrics), {"run_id": "a", "slurm.job.id": "4711"}, (), MonitorStatus(1.0, number)))
        for openmetrics in (False, True):
            text = cache.metrics(openmetrics)
            assert text == written_anew(cache, openmetrics)
            assert gzip.decompress(cache.metrics(openmetrics, packed=True)) == text


@settings(deadline=None)
@given(st.lists(st.lists(st.one_of(NUMBERS, st.sampled_from((math.nan, math.inf, -math.inf))), min_size=8, max_size=8), min_size=2))
def test_every_number_is_written_as_the_library_writes_it(rows: list[list[Number]]) -> None:
    """Also where it follows one that is equal to it and reads otherwise, or that no JSON has; in gauges, counters, distributions."""

    def points(numbers: list[Number]) -> list[Point]:
        first, *rest = numbers
        spread = Distribution(int(rest[0]) if math.isfinite(rest[0]) else 1, rest[1], ((0.5, 3), (2.0, 7)))
        plain = [Point(f"metric_{place}", number, {"a": "100 %"}, meaning="100 %s\n") for place, number in enumerate(rest[2:])]
        return [Point("all_total", first, {}, "counter"), Point("spread", 0, {}, "histogram", distribution=spread), *plain]

    def column(numbers: list[Number]) -> list[Number]:
        found = points(numbers)
        spread = found[1].distribution
        assert spread is not None
        return [found[0].value, 3, 7, spread.observations, spread.total, *(point.value for point in found[2:]), 0]

    for openmetrics in (False, True):
        template = TextTemplate((), points(rows[0]), MAX_SERIES, openmetrics)
        for numbers in rows:
            exposition = Exposition(points(numbers))
            exposition.add(DROPPED)
            assert template.text(column(numbers)) == exposition.text(openmetrics)


# Equal, whatever else changes


def changes() -> Iterator[tuple[str, Record]]:
    """Records, each with something that differs from the one before it beside its numbers, and by what name it goes."""
    metrics: dict[str, Number] = {key: 10.5 + place for place, key in enumerate(some_keys())}
    base = Record(taken(0, metrics), {"run_id": "a"}, (), MonitorStatus(1.0, 1))

    def having(number: int, values: dict[str, Number] = metrics, **parts: Any) -> Record:
        return base._replace(snapshot=taken(number, values, **parts))

    fewer = {key: value for key, value in metrics.items() if key != "gpu.0.powerWatts"}
    yield "the first", base
    yield "a key goes", having(1, fewer)
    yield "a key comes", having(2)
    yield "another order", having(3, dict(reversed(metrics.items())))
    renamed = slots()[0]._replace(identity=slots()[0].identity._replace(uuid="GPU-other", driver_version="1%"))
    yield "another device", having(4, identities=(renamed, *slots()[1:]))
    yield "a device goes", having(5, identities=slots()[1:])
    lost = {f"gpu.0.{name}": Unavailable(Reason.DEVICE_LOST) for name in ("powerWatts", "temp")}
    yield "reasons", having(6, fewer, unavailable=lost)
    yield "a source fails", having(7, backends=(BackendStatus("nvidia", "timed_out"), BackendStatus("amd", "ok", age_seconds=0.0)))
    yield "processes", having(8, processes={"gpu.0": (DeviceProcess(4711, "compute", 2**30, 12.5, None), DeviceProcess(4712))})
    yield "other processes", having(9, processes={"gpu.0": (DeviceProcess(4713, "", 2**31),)})
    finding = Finding("hot", "warning", "gpu.1", "core at 83 °C", 83.0, 80.0, 1, None, "")
    yield "a finding", base._replace(findings=Findings((finding,)))
    yield "labels", base._replace(labels={"run_id": 'b"\n', "slurm.job.id": "7"})
    held = Holders((Holder("gpu.1", "pod", {"pod": "a", "namespace": "b"}),), {"kubernetes": ""})
    yield "holders", base._replace(holders=held)
    yield "other holders", base._replace(holders=held._replace(found=(Holder("gpu.1", "pod", {"pod": "c", "namespace": "b"}),)))
    yield "labels of a device", base._replace(device_labels={"gpu.0": {"pod": "train"}})
    yield "an exporter", base._replace(monitor=MonitorStatus(1.0, 2, exporters=(ExporterStatus("jsonl", 3),)))
    yield "a step", base._replace(steps=(Step(RECENT, 1, {"loss": 0.5, "step_seconds": 0.1}),))
    yield "more names in a step", base._replace(steps=(Step(RECENT, 2, {"loss": math.nan, "lr": 1e-4, "step_seconds": 0.2}),))
    yield "another rank", base._replace(steps=(Step(RECENT, 2, {"loss": math.inf}, 1, "node-2"),))
    yield "nothing", Record(Snapshot(RECENT, "node-1", {}))


@pytest.mark.parametrize("dialect", ["prometheus", "dcgm", "nvidia_smi", "training", "otel"])
def test_what_changes_beside_the_numbers_is_written(dialect: str) -> None:
    """Each change has the library write everything anew, also back to what was before."""
    cache = ScrapeCache(dialect, max_age=math.inf, processes=5)
    for _ in range(2):
        for what, record in changes():
            cache.take(record)
            for openmetrics in (False, True):
                assert cache.metrics(openmetrics) == written_anew(cache, openmetrics, processes=5), what


def test_rows_that_a_plug_in_adds_are_named_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of keys that were there before."""
    monkeypatch.setattr(catalogue, "_added", {})
    cache = ScrapeCache("prometheus", max_age=math.inf)
    texts = []
    for number in range(2):
        cache.take(Record(taken(number, {"gpu.0.mystery": 7, "gpu.0.temp": 60})))
        texts.append(cache.metrics().decode())
        assert cache.metrics() == written_anew(cache)
        catalogue.add([Metric("gpu.{i}.mystery", "W", "gauge", "A power.", prometheus="accel_mystery_watts")])
    monkeypatch.undo()
    catalogue._index.cache_clear()
    for forget in catalogue._forget_keys:
        forget()
    assert ["accel_mystery_watts{" in text for text in texts] == [False, True]


def test_series_over_the_limit_are_counted_in_each_record() -> None:
    """Where the template leaves them out, as where it was made."""
    cache = ScrapeCache("prometheus", max_series=60, max_age=math.inf)
    for number in range(3):
        cache.take(Record(taken(number, dict.fromkeys(some_keys(), number))))
        assert cache.metrics() == written_anew(cache, max_series=60)
        cache.metrics(openmetrics=True)
    assert cache._dropped > 0
    assert cache._dropped % 3 == 0


# Whole machines


def test_simulated_gpus_and_this_host_read_again_and_again() -> None:
    """MIG, processes, an Xid error and rates that begin with the second reading among them."""
    cache = ScrapeCache("prometheus", max_age=math.inf, per_link=True, processes=5)
    with NvmlSimulator(gpus=3, profile="h100") as simulator:
        simulator.load()
        with Sampler(["nvidia", "host"], timeout=10) as sampler:
            for turn in range(5):
                simulator.processes(0, [Process(number, used=number << 30, sm=number) for number in range(1, 2 + turn // 2)])
                if turn == 3:
                    simulator.xid(0, 79)
                cache.take(Record(sampler.sample(), {"run_id": "a"}))
                for openmetrics in (False, True):
                    assert cache.metrics(openmetrics) == written_anew(cache, openmetrics, processes=5)


def test_a_file_has_the_same_text(tmp_path: Path) -> None:
    """The exporter for node_exporter's collector replaces numbers too, and each file is whole."""
    exporter = TextfileExporter(tmp_path / "a.prom")
    exporter._cache._max_age = math.inf
    with exporting(exporter):
        for number in range(3):
            exporter.export(Record(taken(number, {"gpu.0.powerWatts": 300.0 + number})))
            assert exporter.path.read_bytes() == written_anew(exporter._cache)


def test_all_metrics_are_in_the_records() -> None:
    """Of the catalogue, each one that has a name."""
    names = {point.name for point in PROMETHEUS.points(Record(taken(0, dict.fromkeys(all_keys(), 1))))}
    missing = {row.prometheus.partition("{")[0] for row in catalogue.CATALOGUE if row.prometheus} - names
    assert not missing
