"""A request in which numbers, times and starts are set anew is, byte for byte, the one that is made from nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, given, settings, strategies as st

from accelmetrics import Sampler
from accelmetrics.dialects.contract import Number, Point
from accelmetrics.dialects.otel import described
from accelmetrics.exporters import otlp
from accelmetrics.exporters.otlp import OtlpExporter, RequestBuilder
from accelmetrics.schemas.record import MonitorStatus, Record, Step
from accelmetrics.schemas.snapshot import Snapshot
from tests.exporters.receivers import grpc_collector
from tests.exporters.test_text_template import RECENT, all_keys, changes, slots, taken
from tests.simulators.nvml import NvmlSimulator
from tests.support.exporting import exporting


class Pair:
    """A builder that keeps its messages, and one that has each message made anew."""

    def __init__(self) -> None:
        self.kept, self.anew = RequestBuilder(), RequestBuilder()

    def written(self, record: Record) -> bytes:
        """The request, after a look that both are the same."""
        found = self.kept.build(record).SerializeToString()
        self.anew._mark = object()
        assert found == self.anew.build(record).SerializeToString()
        return bytes(found)


def reading(number: int, **metrics: Number) -> Record:
    """A reading of one GPU at a time of its own."""
    values: dict[str, Number] = {f"gpu.0.{name}": value for name, value in metrics.items()}
    return Record(Snapshot(RECENT + number, "node-1", values, slots()[:1]))


def _keys_of_one_series_each() -> list[str]:
    found = {
        (series.point.name, *series.point.labels.items(), *device.items()): key
        for key, series, device in described(taken(0, dict.fromkeys(all_keys(), 1)).header)
    }
    return list(found.values())


# Equal, whatever the numbers


@settings(max_examples=5, deadline=None, phases=(Phase.generate,))
@given(st.data())
def test_numbers_of_every_metric_are_replaced(data: st.DataObject) -> None:
    """Of devices of all vendors; counters that rise and fall among them."""
    pair, keys = Pair(), _keys_of_one_series_each()
    for number in range(4):
        few = data.draw(st.lists(st.one_of(st.integers(-(2**30), 2**30), st.floats(-1e9, 1e9)), min_size=7, max_size=7))
        record = Record(taken(number, {key: few[place % 7] for place, key in enumerate(keys)}), {"run_id": "a"})
        pair.written(record)
        pair.written(record)  # offered again


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.floats(0, 1e12), st.integers(-5, 2**64), st.integers(0, 2**64 - 1)), min_size=2, max_size=6))
def test_any_numbers_and_times(rows: list[tuple[float, int, int]]) -> None:
    """A time of 0, which has no bytes, and one that looks like a mark are among them."""
    pair = Pair()
    for joules, replays, time_ns in rows:
        metrics: dict[str, Number] = {"gpu.0.energyJoules": joules, "gpu.0.pcieReplays": replays, "gpu.0.powerWatts": joules}
        pair.written(Record(Snapshot(time_ns, "node-1", metrics, slots()[:1])))


@pytest.mark.parametrize("time_ns", [0, 1, 2**64 - 2, 2**64 - 1])
def test_times_at_the_edge(time_ns: int) -> None:
    """The first time is the start of counters as well."""
    pair = Pair()
    for when in (time_ns, time_ns, RECENT):
        for more in ({}, {"gpu.0.temp": 60}):
            metrics: dict[str, Number] = {"gpu.0.energyJoules": 1.0, "gpu.0.powerWatts": 2.0, **more}
            pair.written(Record(Snapshot(when, "node-1", metrics, slots()[:1])))


# Equal, whatever else changes


def test_what_changes_beside_the_numbers_is_written() -> None:
    """Keys, devices, reasons, findings, steps, labels and the monitor's state, there and back."""
    pair = Pair()
    for _ in range(2):
        for _, record in changes():
            pair.written(record)


def test_a_reset_counter_starts_anew() -> None:
    """What is known of counters stays through a reset, a key that goes, one that comes, and a request that is built twice."""
    pair = Pair()
    joules = iter((1000.0, 1300.0, 1300.0, 20.0, 320.0, 400.0, 10.0, 50.0))
    for number, others in enumerate(({}, {}, {}, {}, {"temp": 60}, {}, {"temp": 60}, {})):
        pair.written(reading(number, energyJoules=next(joules), pcieReplays=number, **others))
    point = reading(9, energyJoules=60.0, pcieReplays=9)
    pair.written(point)
    assert pair.kept.build(point).SerializeToString() == pair.written(point)
    pair.written(reading(10, energyJoules=5.0, pcieReplays=9))


def test_names_that_a_program_shares_with_the_machine_are_one_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the plain path: the program's points stand behind the machine's."""
    shared = [Point("hw.power", 1.0, {"a": "b"}, "gauge", "W", "Power.")]
    monkeypatch.setattr(otlp, "step_points", lambda step: shared)
    pair = Pair()
    for number in range(3):
        pair.written(reading(number, powerWatts=300.0)._replace(steps=(Step(RECENT, number, {}),)))


def test_simulated_gpus_read_again_and_again() -> None:
    """A driver's own values, with an Xid error and steps that differ in number."""
    pair = Pair()
    with NvmlSimulator(gpus=2, profile="h100") as simulator:
        simulator.load()
        with Sampler(["nvidia", "host"], timeout=10) as sampler:
            for turn in range(5):
                if turn == 2:
                    simulator.xid(0, 79)
                snapshot = sampler.sample()
                steps = tuple(Step(snapshot.time_ns - number, number, {"loss": 0.5}, rank=number % 2) for number in range(turn))
                pair.written(Record(snapshot, {"run_id": "a"}, steps, MonitorStatus(1.0, turn)))


@pytest.mark.parametrize(
    ("endpoint", "packed"),
    [
        ("http://127.0.0.1:4317", False),
        ("localhost:4317", False),
        ("http://[::1]:4317", False),
        ("https://collector:4317", True),
        ("http://10.0.0.1:4317", True),
    ],
)
def test_what_stays_on_this_machine_is_not_packed(endpoint: str, packed: bool) -> None:
    """Unless it is asked for."""
    for protocol in ("grpc", "http"):
        assert _packs(OtlpExporter(endpoint, protocol=protocol)) is packed
        assert _packs(OtlpExporter(endpoint, protocol=protocol, compression="gzip"))
        assert not _packs(OtlpExporter(endpoint, protocol=protocol, compression="none"))


def _packs(exporter: OtlpExporter) -> bool:
    sender: Any = exporter._sender
    return sender._compress if isinstance(sender, otlp._Http) else sender._compression.name == "Gzip"


def test_a_collector_reads_what_was_replaced() -> None:
    """The second record's numbers and times, with the first one's start."""
    with grpc_collector() as collector:
        with exporting(OtlpExporter(collector.endpoint)) as exporter:
            for number in range(2):
                exporter.export(reading(number, energyJoules=1000.0 + number, powerWatts=300.0 + number))
        (power,), (energy,) = collector.named("hw.power"), collector.named("hw.energy")
    assert (power.value, power.time_ns) == (301.0, RECENT + 1)
    assert (energy.value, energy.time_ns, energy.start_ns) == (1001.0, RECENT + 1, RECENT)
