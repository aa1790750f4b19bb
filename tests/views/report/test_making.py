"""The report of records: series, strips, events, what the program logged, energy; in memory that does not grow."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path

import pytest

from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.record import Finding, Findings, Record, Step, WindowSpan
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.views.report.making import CHARTED, Wanted, report_of_files, run_report
from accelmetrics.views.report.run_report import Price, ReducedSeries, RunReport, StreamReport
from accelmetrics.views.report.stream import EVENTS, WINDOWS
from tests.cli.test_report import START, Values, place, record, write

PICTURES = Wanted(series=CHARTED)


def made(records: list[Record], wanted: Wanted = PICTURES) -> RunReport:
    found = run_report(records, wanted)
    assert found is not None
    return found


def only(records: list[Record], wanted: Wanted = PICTURES) -> StreamReport:
    (stream,) = made(records, wanted).streams
    return stream


def marked(stream: StreamReport, kind: str) -> list[tuple[str, float, float]]:
    """What plots mark, in seconds since the beginning."""
    return [(one.label, one.begin - START, one.end - START) for one in stream.marks if one.kind == kind]


def by_key(stream: StreamReport) -> dict[str, ReducedSeries]:
    return {one.key: one for one in stream.series}


def test_series_have_their_measure_unit_and_device() -> None:
    """Those that were asked for; short recordings are whole."""
    run = [
        record(second, {"gpu.0.powerWatts": 100.0 + second, "gpu.0.gpu": 50, "gpu.0.pcieReplays": 1, "cpu": 5.0}) for second in range(20)
    ]
    found = by_key(only(run))
    assert set(found) == {"gpu.0.powerWatts", "gpu.0.gpu", "cpu"}
    power = found["gpu.0.powerWatts"]
    assert (power.device, power.name, power.measure, power.unit) == ("gpu.0", "powerWatts", "power_watts", "W")
    assert power.low == power.mean == power.high == [100.0 + second for second in range(20)]
    assert (found["cpu"].device, found["cpu"].measure) == ("", "")
    assert [round(moment - START) for moment in only(run).times] == list(range(20))


def test_a_gap_is_a_point_without_values_in_every_series() -> None:
    """So that no line is drawn over it; where a bucket is wide, the gap is in the bucket."""
    run = [record(second, {"gpu.0.gpu": 50}, gpus=1) for second in (*range(10), *range(100, 110))]
    stream = only(run)
    assert by_key(stream)["gpu.0.gpu"].mean == [50.0] * 10 + [None] + [50.0] * 10
    assert len(stream.times) == 21 and stream.times == sorted(stream.times)
    assert [one.kind for one in stream.marks] == ["gap"]
    assert marked(stream, "gap") == [("nothing was read", 9.0, 100.0)]


def test_throttling_is_a_strip() -> None:
    """The share of readings in which it was so; idle clocks are none."""
    values: list[Values] = [{"gpu.0.throttle.swPowerCap": int(second >= 6), "gpu.0.throttle.gpuIdle": 1} for second in range(10)]
    report = made([record(second, values[second], gpus=1) for second in range(10)])
    assert report.streams[0].strips == {("gpu.0", "swPowerCap"): [0.0] * 6 + [1.0] * 4}
    assert report.document["devices"]["gpu.0"]["throttled_seconds"] == {"swPowerCap": pytest.approx(3.0)}


def lacking(second: int, values: dict[str, int | float], lost: Mapping[str, Unavailable], gpus: int) -> Record:
    """A reading in which something is lost."""
    plain = record(second, values, gpus=gpus)
    slots = [place(number) for number in range(gpus)]
    return plain._replace(snapshot=Snapshot(plain.snapshot.time_ns, "node-1", values, slots, lost))


def test_errors_and_losses_are_events() -> None:
    """At the reading that first had them; what stood from the beginning is none."""
    run = []
    for second in range(10):
        values: Mapping[str, int | float] = {"gpu.0.xidErrors": 3 + 2 * (second >= 4), "gpu.0.lastXid": 79, "gpu.1.gpu": 1}
        lost = {"gpu.1.gpu": Unavailable(Reason.DEVICE_LOST, "GPU is lost")} if second >= 7 else {}
        run.append(lacking(second, {key: value for key, value in values.items() if key not in lost}, lost, 2))
    stream = only(run)
    assert marked(stream, "event") == [("gpu.0 2 Xid errors, the last 79", 4.0, 4.0), ("gpu.1 the device was lost", 7.0, 7.0)]
    assert stream.missing == [("gpu.1", ("gpu",), "device_lost", "GPU is lost", START + 7.0, START + 9.0)]


def test_each_loss_of_a_device_is_an_event() -> None:
    """One that came back and was lost again was lost twice; as many as can be told."""

    def flapping(times: int) -> list[Record]:
        run = []
        for second in range(2 * times):
            lost = {f"gpu.0.{name}": Unavailable(Reason.DEVICE_LOST) for name in ("gpu", "temp")} if second % 2 else {}
            run.append(lacking(second, {} if second % 2 else {"gpu.0.gpu": 1, "gpu.0.temp": 40}, lost, 1))
        return run

    assert marked(only(flapping(3)), "event") == [("gpu.0 the device was lost", second, second) for second in (1.0, 3.0, 5.0)]
    assert len(marked(only(flapping(EVENTS + 50)), "event")) == EVENTS


def test_devices_lost_together_are_told_in_order() -> None:
    """In the order of the reading."""
    lost = {f"gpu.{number}.gpu": Unavailable(Reason.DEVICE_LOST) for number in range(8)}
    run = [lacking(0, dict.fromkeys(lost, 1), {}, 8), lacking(1, {}, lost, 8)]
    assert marked(only(run), "event") == [(f"gpu.{number} the device was lost", 1.0, 1.0) for number in range(8)]


def test_of_very_many_windows_the_first_are_marked() -> None:
    """Those that ended have their end, though more were told than are marked."""
    run = []
    for second in range(2 * WINDOWS + 100):
        name, begin = f"step-{second // 2}", int((START + second // 2 * 2) * 1e9)
        span = WindowSpan(name, begin, None if second % 2 == 0 else begin + 10**9)
        run.append(record(second, {"gpu.0.gpu": 1}, gpus=1)._replace(windows=(span,)))
    windows = marked(only(run), "window")
    assert len(windows) == WINDOWS
    assert all(end - begin == 1.0 for _, begin, end in windows)


def test_a_window_around_the_whole_recording_is_not_marked() -> None:
    """As of the summary that `record` writes at its end: its shade and its name would be in every plot."""
    run = [record(second, {"gpu.0.gpu": 1}, gpus=1) for second in range(10)]
    ends = {"summary": (START + 0.01, START + 9.1), "warm-up": (START, START + 4)}
    spans = tuple(WindowSpan(name, int(begin * 1e9), int(end * 1e9)) for name, (begin, end) in ends.items())
    run[-1] = run[-1]._replace(windows=(WindowSpan("total", int((START - 0.1) * 1e9), None), *spans))
    assert [name for name, _, _ in marked(only(run), "window")] == ["warm-up"]


def test_readings_around_a_finding_are_whole() -> None:
    """Ten minutes before and after its beginning, of its device, though it was told later."""
    hot = Finding("hot", "warning", "gpu.1", "core at 83 °C", 83.0, 80.0, (START + 2000) * 10**9, None, "Check the fans.")
    run = [record(second, {"gpu.0.temp": 40, "gpu.1.temp": second % 90}) for second in range(6000)]
    run = [one._replace(findings=Findings((hot,))) if second >= 2300 else one for second, one in enumerate(run)]
    ((finding, times, columns),) = only(run).details
    assert finding == hot
    assert [moment - START for moment in times] == list(range(1400, 2601))
    assert columns == {"gpu.1.temp": [second % 90 for second in range(1400, 2601)]}


def logged(seconds: int, rank: int | None = None) -> list[Record]:
    """A step a second, three epochs, a loss that is no number once."""
    run = []
    for second in range(seconds):
        values = {"loss": float("nan") if second == 5 else 10.0 - second / 10, "epoch": second // 10, "step_seconds": 1.0 + second % 4 / 10}
        step = Step(int((START + second) * 1e9), 100 + second, values, rank)
        run.append(record(second, {"gpu.0.powerWatts": 100.0}, gpus=1, steps=(step,), rank="" if rank is None else str(rank)))
    return run


def test_what_was_logged_is_a_curve_over_steps_and_time() -> None:
    """Numbers that are not finite are counted, and an event."""
    stream = only(logged(30))
    loss = next(one for one in stream.curves if one.name == "loss")
    assert (len(loss.mean), loss.source) == (29, "")
    assert (loss.steps[0], loss.steps[-1], loss.mean[-1]) == (100.0, 129.0, 10.0 - 2.9)
    assert marked(stream, "event") == [("loss was not finite", 5.0, 5.0)]
    assert marked(stream, "epoch") == [("epoch 0", 0.0, 9.0), ("epoch 1", 9.0, 19.0), ("epoch 2", 19.0, 29.0)]
    assert stream.first_step == START and stream.last_step == START + 29


def test_step_times_have_quantiles_and_a_histogram() -> None:
    """Each step in one bar."""
    (times,) = only(logged(400)).step_times
    assert [times[name] for name in ("count", "min", "max", "p50")] == [400, 1.0, 1.3, 1.1]
    assert times["mean"] == pytest.approx(1.15)
    assert sum(times["counts"]) == 400 and len(times["edges"]) == len(times["counts"]) + 1
    assert (times["edges"][0], times["edges"][-1]) == (1.0, 1.3)


def test_energy_of_a_device_counts_once() -> None:
    """Two ranks that watch the same device are one device; what is asked for has a price."""
    ranks = [one for rank in (0, 1) for one in logged(11, rank)]
    found = made(ranks, Wanted(price=Price(0.36, "EUR"), carbon=360.0))
    assert (list(found.devices), found.counted) == (["rank 0 gpu.0", "rank 1 gpu.0"], frozenset({"rank 0 gpu.0"}))
    energy = found.document["energy"]
    assert (energy["devices"], energy["silent"]) == (1, 0)
    assert energy["joules"] == pytest.approx(1000.0)
    assert energy["cost"] == pytest.approx(1000 / 3.6e6 * 0.36) and energy["carbon_grams"] == pytest.approx(0.1)
    assert made(ranks).document["energy"]["cost"] is None


def test_files_are_told_with_their_digests(tmp_path: Path) -> None:
    """For the report's last lines; what could not be read is counted."""
    path = tmp_path / "run.jsonl"
    write(path, [record(second, {"gpu.0.gpu": 1}, gpus=1) for second in range(3)])
    path.write_bytes(path.read_bytes() + b"{")
    found = report_of_files([str(path)], PICTURES)
    assert found is not None
    assert found.files == [(str(path), path.stat().st_size, 3, 1, sha256(path.read_bytes()).hexdigest())]


def peaks(halves: int, kept: list[Record] | None = None) -> tuple[int, int]:
    """Return the most memory that a report takes while the first half of a recording is read, and the second.

    Both in one pass: so caches of limited size, which other tests may have filled before, count in both or in neither.
    """
    found = []

    def records() -> Iterator[Record]:
        for second in range(2 * halves):
            if second == halves:
                found.append(tracemalloc.get_traced_memory()[1])
                tracemalloc.reset_peak()
            values = {
                "gpu.0.powerWatts": 100.0 + second * 7919 % 3001 / 10,
                "gpu.0.gpu": second % 101,
                "gpu.0.energyJoules": 300.0 * second,
            }
            step = Step(int((START + second) * 1e9), second, {"loss": 1 / (1 + second), "step_seconds": 1 + second % 997 / 1000})
            made = record(second, values, gpus=1, steps=(step,))
            if kept is not None:
                kept.append(made)
            yield made
        found.append(tracemalloc.get_traced_memory()[1])

    tracemalloc.start()
    try:
        run_report(records(), PICTURES)
    finally:
        tracemalloc.stop()
    first, second = found
    return first, second


@pytest.mark.slow
def test_memory_does_not_grow_with_the_recording() -> None:
    """Once every bucket, cell and block is filled, which the first half does; a control that keeps its records is told from it."""
    first, second = peaks(6000)
    assert second < 1.1 * first
    first, second = peaks(3000, kept=[])
    assert second > 1.5 * first
