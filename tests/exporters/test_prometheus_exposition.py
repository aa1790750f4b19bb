"""The text is one that Prometheus takes whole, whatever the machine, the labels and the dialect come up with."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families as parse_text

from accelmetrics import Sampler
from accelmetrics.dialects import registry as dialects
from accelmetrics.dialects.contract import Dialect, Point
from accelmetrics.dialects.prometheus import PROMETHEUS
from accelmetrics.exporters.scrape_cache import Exposition, ScrapeCache, accepts_gzip, prefers_openmetrics
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.snapshot import Snapshot
from tests.exporters.prometheus_server import check_metrics
from tests.records import record
from tests.simulators.nvml import NvmlSimulator, Process
from tests.simulators.rocm_smi import RocmSmiStandIn, output
from tests.simulators.tpu import DUTY_CYCLE, TOTAL, USAGE, TpuMachine, TpuRuntime

parse_openmetrics: Callable[[str], Iterable[Metric]] = openmetrics_parser.text_string_to_metric_families
ACCEPT = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
"""What Prometheus 2.42 sends."""


def written(points: Iterable[Point], max_series: int = 100) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Points, written and read back by the field's own parser: labels and values by name."""
    return _samples(Exposition(points, max_series).text())


def _samples(text: bytes) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in parse_text(text.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


# Whole machines


@pytest.mark.servers
def test_promtool_finds_nothing_wrong_with_eight_gpus_and_the_host() -> None:
    """Every key that eight simulated H100s and this host give, with links and two readings for the rates, is named by the rules."""
    with NvmlSimulator(gpus=8, profile="h100") as simulator:
        simulator.load()
        simulator.xid(0, 79)
        simulator.processes(0, [Process(number, used=number << 30, sm=number) for number in range(1, 9)])
        with Sampler(["nvidia", "host"], timeout=10) as sampler:
            sampler.sample()
            snapshot = sampler.sample()
    what = Record(snapshot, record().labels, record().steps, record().monitor)
    text = _cache(what, per_link=True, processes=5).metrics()
    assert check_metrics(text) == ""
    found = _samples(text)
    assert len(found["accel_power_watts"]) == 8
    assert sorted(value for _, value in found.pop("accel_process_memory_bytes")) == [float(number << 30) for number in range(4, 9)]
    assert {len(found.pop(f"accel_process_{name}")) for name in ("info", "utilization_ratio", "memory_bandwidth_ratio")} == {5}
    assert len(found["accel_link_port_up"]) > 8
    assert found["accelmetrics_series_dropped_total"] == [({}, 0.0)]
    assert found.keys() - _samples(_cache(what).metrics()).keys() == {"accel_link_port_up", "accel_link_port_bytes_total"}
    assert {name for name in found if name.startswith("accel_")} > {"accel_ecc_errors_total", "accel_host_cpu_ratio"}


@pytest.mark.servers
def test_promtool_finds_nothing_wrong_with_an_amd_card_and_tpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other vendors' values go under the same names, with labels of their own."""
    stand_in = RocmSmiStandIn(tmp_path)
    stand_in.behave(output("radeon_6_2"))
    monkeypatch.setenv("PATH", stand_in.path)
    TpuMachine.two_v5e(tmp_path / "root")
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tmp_path / "root"))
    runtime = TpuRuntime()
    runtime.devices(8, 9)
    for gauge, value in ((DUTY_CYCLE, 99.5), (TOTAL, 16 << 30), (USAGE, 4 << 30)):
        runtime.gauge(gauge, {8: value, 9: value})
    monkeypatch.setenv("TPU_RUNTIME_METRICS_PORTS", str(runtime.port))
    try:
        with Sampler(["amd", "tpu"], timeout=10) as sampler:
            snapshot = sampler.sample()
    finally:
        runtime.stop()
    text = _cache(Record(snapshot)).metrics()
    monkeypatch.undo()
    assert check_metrics(text) == ""
    found = _samples(text)
    assert sorted(labels["accelerator"].partition(".")[0] for labels, _ in found["accel_up"]) == ["gpu", "tpu", "tpu"]
    assert {value for labels, value in found["accel_utilization_ratio"] if labels["accelerator"].startswith("tpu")} == {0.995}


def _cache(what: Record, per_link: bool = False, processes: int = 0) -> ScrapeCache:
    cache = ScrapeCache("prometheus", max_age=60, per_link=per_link, processes=processes)
    cache.take(what)
    return cache


def test_how_things_fare_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the endpoint, with what it counts over records; our own dialect is not asked for it."""

    def told_again(_: Record) -> list[Point]:
        raise AssertionError

    monkeypatch.setattr("accelmetrics.dialects.prometheus.health", told_again)
    found = _samples(_cache(record()).metrics())
    assert len(found["accel_up"]) == 2
    assert found["accelmetrics_ticks_total"] == [({}, 10.0)]


@pytest.mark.skipif(sys.platform != "linux", reason="platform: reads /proc")
def test_a_program_describes_itself_where_it_is_asked_to() -> None:
    """As Prometheus' own library does, beside the watched process, and also when nothing recent is left; nowhere else."""
    cache = ScrapeCache("prometheus", max_age=60, own_process=True)
    before = _samples(cache.metrics())
    assert before["accelmetrics_process_resident_memory_bytes"][0][1] > 0
    assert b"# TYPE accelmetrics_process_cpu_seconds_total counter\n" in cache.metrics()
    cache.take(record())
    assert "accelmetrics_process_open_fds" in _samples(cache.metrics())
    assert not [name for name in _samples(_cache(record()).metrics()) if name.startswith("accelmetrics_process_")]


def test_openmetrics_says_the_same_as_text() -> None:
    """The strict parser of OpenMetrics takes it, and finds the same series and values."""
    exposition = Exposition(PROMETHEUS.points(record()))
    strict = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in parse_openmetrics(exposition.text(openmetrics=True).decode())
        for sample in family.samples
    }
    plain = {(name, *sorted(labels.items())): value for name, found in _samples(exposition.text()).items() for labels, value in found}
    assert strict == plain
    assert len(plain) > 50


# What must not spoil it


@pytest.mark.servers
def test_hostile_labels_are_written_so_that_they_are_read_back() -> None:
    r"""Quotes, backslashes and line breaks come back as they were; what is no text, or too long, does not get through."""
    hostile = {"a": 'quote" \\ back\nline', "b": "ü" * 100, "c": "x" * 1000, "d": "/mnt/\udcff", "e": "bell\x07\x00"}
    ((labels, value),) = written([Point("metric", 1, hostile)])["metric"]
    assert labels["a"] == hostile["a"]
    assert labels["b"] == "ü" * 64
    assert labels["c"] == "x" * 128
    assert labels["d"] == "/mnt/\\udcff"
    assert labels["e"] == "bell\ufffd\ufffd"
    assert value == 1
    assert check_metrics(Exposition([Point("metric", 1, hostile, meaning='says "so" \\ \n')]).text()) == ""


def test_names_of_other_dialects_become_legal() -> None:
    """Dots and spaces become underscores; a digit does not begin a name."""
    found = written([Point("gpu.0.powerWatts", 300, {"my label": "x", "0": "y"}), Point("9lives", 1, {})])
    assert found == {"gpu_0_powerWatts": [({"my_label": "x", "_0": "y"}, 300.0)], "_9lives": [({}, 1.0)]}


def test_one_type_and_one_help_for_each_metric() -> None:
    """What the first series says holds; the same series twice is written once and counted."""
    points = [
        Point("metric", 1, {"a": "1"}, meaning="first"),
        Point("metric", 2, {"a": "2"}, "counter", meaning="second"),
        Point("metric", 3, {"a": "1"}),
    ]
    exposition = Exposition(points)
    text = exposition.text().decode()
    assert text.count("# TYPE metric gauge") == text.count("# HELP metric first") == text.count("# TYPE") == 1
    assert exposition.dropped == 1
    assert _samples(text.encode())["metric"] == [({"a": "1"}, 1.0), ({"a": "2"}, 2.0)]


def test_counters_keep_their_names() -> None:
    """A counter that ends as counters must has its type; another monitor's that does not is served under its own name, untyped."""
    text = Exposition([Point("ours_total", 1, {}, "counter"), Point("DCGM_FI_DEV_ENERGY", 2, {}, "counter")]).text().decode()
    assert "# TYPE ours_total counter\nours_total 1.0\n" in text
    assert "# TYPE DCGM_FI_DEV_ENERGY untyped\nDCGM_FI_DEV_ENERGY 2.0\n" in text


def test_a_name_has_one_type_with_and_without_its_ending() -> None:
    """OpenMetrics knows ``ticks`` and ``ticks_total`` as one metric: the second of them is left out and counted."""
    exposition = Exposition([Point("ticks_total", 1, {}, "counter"), Point("ticks", 2, {}, "counter"), Point("ticks", 2, {}, "gauge")])
    assert _samples(exposition.text()) == {"ticks_total": [({}, 1.0)]}
    assert exposition.dropped == 2


@pytest.mark.parametrize("name", dialects.names())
def test_every_dialect_can_be_served(name: str) -> None:
    """Both formats are read back whole by the field's own parsers, with the devices' state beside the dialect's names."""
    cache = ScrapeCache(name, max_age=60)
    cache.take(record())
    assert len(_samples(cache.metrics())["accel_up"]) == 2
    assert len(list(parse_openmetrics(cache.metrics(openmetrics=True).decode()))) > 20


@pytest.mark.servers
def test_a_record_that_is_offered_again_counts_once() -> None:
    """An exporter whose file could not be written gets the same record anew: what the cache counts over records stays as it is."""
    what = record()
    failed = [status._replace(status="timed_out") for status in what.snapshot.backends]
    what = what._replace(snapshot=Snapshot(what.snapshot.time_ns, "node-1", {"cpu": 1.0}, backends=failed))
    cache = ScrapeCache("prometheus", max_age=60)
    for _ in range(3):
        cache.take(what)
        cache.metrics()
    found = _samples(cache.metrics())
    assert {labels["source"]: value for labels, value in found["accelmetrics_collect_timeouts_total"]} == {"nvidia": 1.0, "host": 1.0}
    assert check_metrics(cache.metrics()) == ""


def test_a_record_is_counted_when_it_comes_not_when_it_is_scraped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrape that is late, while the next record has come already, does not count its own once more."""
    monkeypatch.setitem(dialects.BUILT_IN, "counter", f"{__name__}:COUNTER")
    cache = ScrapeCache("counter", max_age=60)
    cache.take(record())
    latest = cache._latest
    cache.take(record())
    monkeypatch.setattr(cache, "_latest", latest)
    assert _samples(cache.metrics())["shown_total"] == [({}, 1.0)]
    assert COUNTER.shown == 2


class Counter(Dialect):
    """A dialect that counts the records it is shown."""

    name = "counter"
    summary = "counts"
    counting = True

    def __init__(self) -> None:
        self.shown = 0

    def points(self, record: Record) -> list[Point]:
        del record
        self.shown += 1
        return [Point("shown_total", self.shown, {}, "counter")]


COUNTER = Counter()


def test_there_are_no_more_series_than_allowed() -> None:
    """The rest is counted, once for each record; how things fare is never what is cut off."""
    cache = ScrapeCache("prometheus", max_series=30, max_age=60)
    what = record(8, steps=False)
    for turn in (1, 2):
        cache.take(what)
        found = _samples(cache.metrics())
        cache.metrics(openmetrics=True)
        assert sum(map(len, found.values())) == 31
        assert len(found["accel_up"]) == 8
        dropped = len(list(PROMETHEUS.points(what))) + 2 - 30  # two sources have a counter that only an endpoint keeps
        assert found["accelmetrics_series_dropped_total"] == [({}, float(turn * dropped))]


# What a client asks for


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [(ACCEPT, True), ("text/plain", False), ("*/*", False), ("", False), ("application/openmetrics-text;q=0.1,text/plain;q=0.5", False)],
)
def test_the_format_is_what_the_client_prefers(accept: str, openmetrics: bool) -> None:
    """OpenMetrics is served to clients that ask for it at least as eagerly as for text, and text to all others."""
    assert prefers_openmetrics(accept) is openmetrics


@pytest.mark.parametrize(
    ("accept", "packed"), [("gzip", True), ("deflate, GZIP;q=0.5", True), ("gzip;q=0", False), ("", False), ("gzip;q=x", False)]
)
def test_gzip_is_what_the_client_accepts(accept: str, packed: bool) -> None:
    """It is used where it is named and not refused."""
    assert accepts_gzip(accept) is packed
