"""``accelmetrics report``: numbers reckoned by hand, gaps and missing values, every form."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from accelmetrics.exporters.files import JsonlExporter
from accelmetrics.schemas.identity import DeviceIdentity, DeviceSlot
from accelmetrics.schemas.record import CannotTell, Finding, Findings, Record, Step
from accelmetrics.schemas.recording import read_records
from accelmetrics.schemas.snapshot import Snapshot
from tests.cli.shell import call
from tests.support.exporting import exporting

START = 1_767_225_600
GIB = 2**30
Values = Mapping[str, int | float]


def place(number: int) -> DeviceSlot:
    identity = DeviceIdentity(
        "gpu", "nvidia", number, f"GPU {number}", f"GPU-0000000{number}-aaaa-bbbb-cccc-dddddddddddd", memory_total_bytes=80 * GIB
    )
    return DeviceSlot(f"gpu.{number}", number, None, identity)


def record(
    second: float,
    metrics: Values,
    *,
    host: str = "node-1",
    run_id: str = "a",
    rank: str = "",
    gpus: int = 2,
    steps: tuple[Step, ...] = (),
) -> Record:
    """A reading so many seconds after the start."""
    snapshot = Snapshot(int((START + second) * 1e9), host, dict(metrics), [place(number) for number in range(gpus)])
    labels = {"run_id": run_id, "rank": rank}
    return Record(snapshot, {name: value for name, value in labels.items() if value}, steps)


def write(path: Path, records: list[Record]) -> str:
    path.write_text("".join(json.dumps(one.to_dict()) + "\n" for one in records))
    return str(path)


def report(*arguments: str) -> str:
    done = call("report", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def summary(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(report(*arguments, "--format", "json"))
    return found


def unfolded(text: str) -> list[str]:
    """The lines of a text, each with what was folded; none is wider than eighty columns."""
    assert all(len(line) <= 80 for line in text.splitlines()), text
    return text.replace("\n    ", " ").splitlines()


@pytest.fixture
def steady(tmp_path: Path) -> str:
    """Ten seconds: GPU 0 at 0 and 80 % in turn, at 100 then 300 W; GPU 1 idles at 0 % and says nothing of power."""
    records = []
    for second in range(11):
        values: dict[str, int | float] = {"gpu.0.gpu": 80 if second % 2 else 0, "gpu.0.powerWatts": 100.0 if second <= 5 else 300.0}
        values |= {"gpu.0.temp": 40 + second, "gpu.0.memoryAllocatedBytes": 40 * GIB, "gpu.1.gpu": 0, "cpu": 50.0}
        records.append(record(second, values))
    return write(tmp_path / "steady.jsonl", records)


def test_numbers_are_those_reckoned_by_hand(steady: str) -> None:
    """Means are over time, maxima over readings, energy is the area below the power."""
    found = summary(steady)
    first = found["devices"]["gpu.0"]
    assert (found["readings"], found["duration_seconds"], found["gaps"]) == (11, 10.0, [])
    # Each reading stands until the next one, and the last for no time: of the ten seconds, five begin with 80 %, six with 100 W.
    assert first["utilization_percent"]["mean"] == pytest.approx(40.0)
    assert (first["utilization_percent"]["max"], first["utilization_percent"]["count"]) == (80.0, 11)
    assert first["power_watts"]["mean"] == pytest.approx((6 * 100 + 4 * 300) / 10)
    assert first["energy"] == {"joules": pytest.approx(5 * 100 + 200 + 4 * 300), "source": "integrated", "seconds": pytest.approx(10.0)}
    assert (first["temperature_celsius"]["max"], first["temperature_celsius"]["p95"]) == (50.0, 50.0)
    assert first["memory_total_bytes"] == 80 * GIB


def test_an_idle_device_counts_and_a_silent_one_does_not(steady: str) -> None:
    """A measured 0 is a value; what was never measured is null."""
    second = summary(steady)["devices"]["gpu.1"]
    assert (second["utilization_percent"]["mean"], second["utilization_percent"]["count"]) == (0.0, 11)
    assert (second["power_watts"], second["temperature_celsius"], second["energy"]) == (None, None, None)


def test_what_is_not_wanted_is_left_out(steady: str) -> None:
    """Of what the recording has."""
    first = summary(steady, "--metrics", "gpu,temp")["devices"]["gpu.0"]
    assert first["power_watts"] is None and first["temperature_celsius"]["max"] == 50.0


def test_the_flat_shape(steady: str) -> None:
    """``gpu-stats`` has exactly these fields, in percent, GiB, watts and degrees, null where nothing was measured."""
    found = json.loads(report(steady, "--shape", "gpu-stats"))
    assert found == {
        "gpu_0": {
            "name": "GPU 0",
            "avg_utilization": pytest.approx(40.0),
            "max_utilization": 80.0,
            "avg_memory_used": pytest.approx(40.0),
            "max_memory_used": 40.0,
            "memory_total": 80.0,
            "avg_power": pytest.approx(180.0),
            "max_power": 300.0,
            "power_limit": None,
            "avg_temperature": pytest.approx(44.5),
            "max_temperature": 50.0,
            "sample_count": 11,
        },
        "gpu_1": {
            "name": "GPU 1",
            "avg_utilization": 0.0,
            "max_utilization": 0.0,
            "avg_memory_used": None,
            "max_memory_used": None,
            "memory_total": 80.0,
            "avg_power": None,
            "max_power": None,
            "power_limit": None,
            "avg_temperature": None,
            "max_temperature": None,
            "sample_count": 11,
        },
    }


def test_markdown_has_a_column_for_each_device_and_their_mean(steady: str) -> None:
    """The mean is of the devices that say; without throughput there is no word of efficiency."""
    lines = report(steady, "--format", "markdown").splitlines()
    assert "| Metric | gpu.0 | gpu.1 | Mean |" in lines
    assert "| Mean utilisation (%) | 40.0 | 0.0 | 20.0 |" in lines
    assert "| Mean power (W) | 180.0 | - | 180.0 |" in lines
    assert "| Maximum temperature (°C) | 50.0 | - | 50.0 |" in lines
    assert not [line for line in lines if "efficiency" in line]


def test_a_gap_is_told_and_not_reckoned(tmp_path: Path) -> None:
    """What was used while nothing was read is not known."""
    seconds = [*range(10), *range(110, 120)]
    path = write(tmp_path / "gap.jsonl", [record(second, {"gpu.0.powerWatts": 100.0}, gpus=1) for second in seconds])
    found = summary(path)
    assert found["gaps"] == [{"after": "2026-01-01T00:00:09.000000Z", "seconds": 101.0}]
    assert found["devices"]["gpu.0"]["energy"]["joules"] == pytest.approx(1800.0)
    assert "gap: 101.0 s after 2026-01-01T00:00:09Z" in report(path)


def test_much_energy_is_told_in_kilowatt_hours(tmp_path: Path) -> None:
    """In the text; JSON has joules."""
    path = write(tmp_path / "much.jsonl", [record(second, {"gpu.0.powerWatts": 36_000.0}, gpus=1) for second in (0, 2, 4, 6, 8, 10)])
    _, _, headings, row = report(path).splitlines()
    assert (headings.split()[-1], row.split()[-1]) == ("kWh", "0.100")
    assert summary(path)["devices"]["gpu.0"]["energy"]["joules"] == pytest.approx(360_000.0)


def test_the_counter_is_preferred(tmp_path: Path) -> None:
    """A device's own counter is the better source, and is named."""
    records = [record(second, {"gpu.0.powerWatts": 100.0, "gpu.0.energyJoules": 5000 + 120 * second}, gpus=1) for second in range(5)]
    energy = summary(write(tmp_path / "counter.jsonl", records))["devices"]["gpu.0"]["energy"]
    assert energy == {"joules": pytest.approx(480.0), "source": "counter", "seconds": pytest.approx(4.0)}


def test_throttling_is_told_by_reason(tmp_path: Path) -> None:
    """An idle clock is no throttling."""
    values = {"gpu.0.throttle.swPowerCap": 1, "gpu.0.throttle.gpuIdle": 1, "gpu.0.throttle.hwSlowdown": 0}
    path = write(tmp_path / "hot.jsonl", [record(second, values, gpus=1) for second in range(5)])
    assert summary(path)["devices"]["gpu.0"]["throttled_seconds"] == {"swPowerCap": pytest.approx(4.0)}
    assert "throttled, power cap: gpu.0 for 4.0 s" in report(path)


NO_ENERGY = "energy is unknown: it needs two readings of a device that reports power or energy"


def test_work_of_ranks_adds_up(tmp_path: Path) -> None:
    """In one recording that has the steps of both, and beside the other rank's own: none is counted twice."""
    logged = {"tokens": 1000, "tokens_per_second": 500.0, "tokens_per_joule": 5.0}
    steps = tuple(Step(int((START + second) * 1e9), second, logged, rank, "node-1") for second in (2, 4) for rank in (0, 1))
    both = {rank: [record(0, {}, rank=rank), record(4, {}, rank=rank, steps=steps)] for rank in ("0", "1")}
    paths = [write(tmp_path / f"{rank}.jsonl", records) for rank, records in both.items()]
    for given in (paths[:1], paths[1:], paths):
        assert summary(*given)["work"] == {
            "tokens": {
                "per_second": pytest.approx(1000.0),
                "per_joule": pytest.approx(5.0),
                "per_joule_of_mean_device": None,
                "reason": NO_ENERGY,
            }
        }


def test_work_is_told_per_second_and_per_joule(tmp_path: Path) -> None:
    """Throughput over the time of the steps; efficiency where their energy is known."""
    values = {"tokens": 1000, "tokens_per_second": 500.0, "tokens_per_joule": 5.0}
    steps = tuple(Step(int((START + second) * 1e9), second, values) for second in (1, 2))
    path = write(tmp_path / "work.jsonl", [record(0, {}), record(2, {}, steps=steps)])
    assert summary(path)["work"] == {
        "tokens": {
            "per_second": pytest.approx(500.0),
            "per_joule": pytest.approx(5.0),
            "per_joule_of_mean_device": None,
            "reason": NO_ENERGY,
        }
    }
    assert "## Power efficiency\n\n- tokens: 500.0 per second, 5 per joule" in report(path, "--format", "markdown")


HOT = Finding("hot", "warning", "gpu.1", "core at 83 °C", 83.0, 80.0, (START + 60) * 10**9, None, "Check the fans.")
STUCK = Finding("loss_not_decreasing", "info", "", "loss fell by 0.01 %", 0.01, 0.1, (START + 30) * 10**9, None, "Done, or stuck.")
UNLOGGED = (CannotTell("hang", (), "*", "not_logged", "nothing"), CannotTell("goodput", (), "*", "not_logged", "nothing"))
LACKS = (*UNLOGGED, CannotTell("near_slowdown", ("gpu.0", "gpu.1"), "tempLimit.slowdown", "not_supported", "NVML_ERROR_NOT_SUPPORTED"))


def found(run: list[Record]) -> list[Record]:
    """Readings of a minute and a half in which something was found: one is over, the other is not."""
    stood: tuple[tuple[Finding, ...], ...] = ((), (STUCK,), (HOT, STUCK), (STUCK,))
    over: tuple[tuple[Finding, ...], ...] = ((), (), (), (HOT._replace(until_ns=(START + 80) * 10**9),))
    return [one._replace(findings=Findings(lasts, ended, LACKS)) for one, lasts, ended in zip(run, stood, over, strict=True)]


def test_findings_are_told_with_their_times_and_what_was_not_judged(tmp_path: Path) -> None:
    """Each once, in the order of their beginning; rules that lack the same together."""
    run = found([record(second, {"gpu.0.gpu": 10, "gpu.1.gpu": 90}) for second in (0, 40, 70, 90)])
    path = tmp_path / "run.jsonl"
    with exporting(JsonlExporter(str(path))) as exporter:
        for one in run:
            exporter.export(one)
    lines = [
        "info: loss_not_decreasing, 2026-01-01T00:00:30Z to the end: loss fell by 0.01 %",
        "warning: hot, gpu.1, 2026-01-01T00:01:00Z to 2026-01-01T00:01:20Z: core at 83 °C",
        "not judged: hang, goodput: nothing",
        "not judged: near_slowdown of gpu.0, gpu.1: not supported (NVML_ERROR_NOT_SUPPORTED)",
    ]
    assert [line for line in unfolded(report(str(path))) if line in lines] == lines
    assert "## Findings\n\n" + "".join(f"- {line}\n" for line in lines) in report(str(path), "--format", "markdown")
    told = summary(str(path))
    assert [(one["rule"], one["key"], one["until"]) for one in told["findings"]] == [
        ("loss_not_decreasing", "", None),
        ("hot", "gpu.1", "2026-01-01T00:01:20.000000Z"),
    ]
    assert [one["rule"] for one in told["cannot_tell"]] == ["hang", "goodput", "near_slowdown"]


def test_findings_of_several_runs_are_kept_apart(tmp_path: Path) -> None:
    """As their devices are."""
    seconds = (0, 40, 70, 90)
    paths = [
        write(tmp_path / f"{name}.jsonl", found([record(second, {"gpu.1.gpu": 1}, run_id=name) for second in seconds])) for name in "ab"
    ]
    assert {one["key"] for one in summary(*paths)["findings"]} == {"run 1", "run 1 gpu.1", "run 2", "run 2 gpu.1"}


def test_hosts_and_runs_are_kept_apart(tmp_path: Path) -> None:
    """The same number on two hosts is two devices, and so is it in two runs."""
    one = write(tmp_path / "one.jsonl", [record(second, {"gpu.0.gpu": 10}, gpus=1) for second in range(3)])
    two = write(tmp_path / "two.jsonl", [record(second, {"gpu.0.gpu": 90}, host="node-2", gpus=1) for second in range(3)])
    later = write(tmp_path / "later.jsonl", [record(second, {"gpu.0.gpu": 50}, run_id="b", gpus=1) for second in range(60, 63)])
    assert list(summary(one, two)["devices"]) == ["node-1 gpu.0", "node-2 gpu.0"]
    assert list(summary(one, later)["devices"]) == ["run 1 gpu.0", "run 2 gpu.0"]
    assert summary(one, one)["readings"] == 3


def watts(seconds: Iterable[float], **about: Any) -> list[Record]:
    """Readings of one GPU at 100 W."""
    return [record(second, {"gpu.0.powerWatts": 100.0, "gpu.0.gpu": 50}, gpus=1, **about) for second in seconds]


def test_files_may_be_given_in_any_order(tmp_path: Path) -> None:
    """The older one second, and the two halves of each other's readings: every reading counts, and no time counts twice."""
    old = write(tmp_path / "old.jsonl", watts(range(10), run_id=""))
    new = write(tmp_path / "new.jsonl", watts(range(100, 110), run_id=""))
    found = summary(new, old)
    assert (found["readings"], found["duration_seconds"], [gap["seconds"] for gap in found["gaps"]]) == (20, 109.0, [91.0])
    assert found["devices"]["gpu.0"]["energy"]["joules"] == pytest.approx(1800.0)
    odd = write(tmp_path / "odd.jsonl", watts([1, 3, 5, 7, 9]))
    even = write(tmp_path / "even.jsonl", watts([0, 2, 4, 6, 8, 10]))
    found = summary(odd, even)
    assert (found["readings"], found["gaps"], found["repeated"]) == (11, [], 0)
    assert found["devices"]["gpu.0"]["energy"]["joules"] == pytest.approx(1000.0)


def test_a_clock_that_was_set_back_costs_no_reading(tmp_path: Path) -> None:
    """It is a gap: nothing is reckoned over it, and everything before and after it counts."""
    path = write(tmp_path / "back.jsonl", watts([*range(100, 130), *range(90, 100)]))
    found = summary(path)
    assert (found["readings"], found["repeated"], found["duration_seconds"]) == (40, 0, 39.0)
    assert found["gaps"] == [{"after": "2026-01-01T00:02:09.000000Z", "seconds": -39.0}]
    assert found["devices"]["gpu.0"]["energy"]["joules"] == pytest.approx(2900.0 + 900.0)
    assert found["devices"]["gpu.0"]["power_watts"]["count"] == 40
    assert "gap: the clock was set back by 39.0 s after 2026-01-01T00:02:09Z" in report(path)


def test_ranks_of_one_run_are_kept_apart(tmp_path: Path) -> None:
    """They read the same devices at their own times: each rank's numbers are its own, whichever file they stand in."""
    paths = [write(tmp_path / f"{rank}.jsonl", watts([rank / 3 + second for second in range(5)], rank=str(rank))) for rank in (0, 1)]
    found = summary(*paths)
    assert {key: one["samples"] for key, one in found["devices"].items()} == {"rank 0 gpu.0": 5, "rank 1 gpu.0": 5}
    both = tmp_path / "both.jsonl"
    both.write_text("".join(Path(path).read_text() for path in paths))
    assert summary(str(both))["devices"] == found["devices"]


def test_what_is_there_twice_is_counted_once_and_told(tmp_path: Path) -> None:
    """A copy adds neither readings nor logged steps, and standard error says how many were passed over."""
    values = {"tokens": 1000, "tokens_per_second": 500.0, "tokens_per_joule": 5.0}
    steps = tuple(Step(int((START + second) * 1e9), second, {**values, "tokens": 1000 * second}) for second in (1, 2))
    first = write(tmp_path / "first.jsonl", [*watts([0, 1]), *watts([2], steps=steps)])
    copy = write(tmp_path / "copy.jsonl", [*watts([0, 1]), *watts([2], steps=(steps[0]._replace(values={**values, "tokens": 9e9}),))])
    done = call("report", first, copy, "--format", "json")
    found = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "accelmetrics report: 3 duplicate readings ignored: each time is counted once\n")
    assert (found["readings"], found["repeated"]) == (3, 3)
    assert found["work"] == json.loads(report(first, "--format", "json"))["work"]


def test_a_device_that_falls_silent_has_gaps_of_its_own(tmp_path: Path) -> None:
    """While others are read; the text says of which device there are fewer readings."""
    silent = {*range(5, 15), *range(25, 30)}
    values = [{"gpu.0.gpu": 10} if second in silent else {"gpu.0.gpu": 10, "gpu.1.gpu": 20} for second in range(30)]
    path = write(tmp_path / "silent.jsonl", [record(second, values[second]) for second in range(30)])
    found = summary(path)
    assert (found["gaps"], found["devices"]["gpu.0"]["gaps"]) == ([], [])
    assert [gap["seconds"] for gap in found["devices"]["gpu.1"]["gaps"]] == [11.0, 5.0]
    lines = report(path).splitlines()
    assert "fewer readings: 15 of gpu.1" in lines
    assert "gap of gpu.1: 11.0 s after 2026-01-01T00:00:04Z" in lines


def test_a_recording_without_devices_tells_of_the_host(tmp_path: Path) -> None:
    """A machine without accelerators has a report too."""
    path = write(tmp_path / "host.jsonl", [record(second, {"cpu": 10.0 * second}, gpus=0) for second in range(3)])
    assert report(path).splitlines()[1:] == ["       mean   max   p95", "  cpu   5.0  20.0  20.0"]


def test_recordings_of_either_form_come_to_the_same(steady: str, tmp_path: Path) -> None:
    """Whole documents, lines below a header, and a file that began as the one and went on as the other."""
    documents = Path(steady).read_text().splitlines(keepends=True)
    records = list(read_records(steady))
    expected = summary(steady)
    for documents_first in (0, 4):
        path = tmp_path / f"{documents_first}.jsonl"
        path.write_text("".join(documents[:documents_first]))
        with exporting(JsonlExporter(path)) as exporter:
            for one in records[documents_first:]:
                exporter.export(one)
        assert summary(str(path)) == expected


def test_readings_whose_header_is_missing_are_told(steady: str, tmp_path: Path) -> None:
    """They are counted, on standard error too; their devices have only their keys."""
    path = tmp_path / "run.jsonl"
    with exporting(JsonlExporter(path)) as exporter:
        for one in read_records(steady):
            exporter.export(one)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:]))
    done = call("report", str(path))
    assert done.stdout.startswith("unknown host: 11 readings over ")
    assert done.stderr == f"accelmetrics report: {path}: the header of 11 readings is missing: host and labels are unknown\n"


def test_a_cut_line_is_told(steady: str) -> None:
    """What was killed in the middle of a line costs that line."""
    path = Path(steady)
    path.write_bytes(path.read_bytes()[:-40])
    done = call("report", steady, "--format", "json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["readings"] == 10
    assert "accelmetrics report: 1 line could not be read; the first: " in done.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ([], 2, "required: FILE"),
        (["{missing}"], 1, "cannot read {missing}"),
        (["{steady}", "--shape", "gpu-stats", "--format", "text"], 2, "excludes --format text"),
        (["{other}"], 1, "report takes JSON lines, which the exporter jsonl and `accelmetrics dump --json --interval` write"),
        (["{empty}"], 1, "no records in"),
    ],
)
def test_what_cannot_be_reported(steady: str, tmp_path: Path, arguments: list[str], status: int, words: str) -> None:
    """One line says what is wrong."""
    (tmp_path / "other").write_text("hello\n")
    (tmp_path / "empty").write_text("")
    known = {"steady": steady, **{name: str(tmp_path / name) for name in ("other", "empty", "missing")}}
    done = call("report", *(argument.format(**known) for argument in arguments))
    assert (done.returncode, done.stdout) == (status, "")
    assert words.format(**known) in done.stderr
    assert done.stderr.count("\n") == 1


RATES = {"tokens_per_second": 10.0, "tokens_per_joule": 0.025}


def test_a_file_that_is_refused_is_not_read_to_its_end(steady: str, tmp_path: Path) -> None:
    """A terabyte without a line, beside a recording: its checksum alone would take an hour."""
    hostile = tmp_path / "hostile.jsonl"
    hostile.write_bytes(Path(steady).read_bytes())
    with hostile.open("r+b") as file:
        file.truncate(1 << 40)
    done = call("report", steady, "--compare", str(hostile))
    assert done.returncode == 1
    assert f"{hostile}, line 12: it has a line of more than 256 MiB" in done.stderr


def test_the_table_by_epoch_with_cost_and_carbon(tmp_path: Path) -> None:
    """In every form; what was not given is not there."""
    steps = {second: (Step(int((START + second) * 1e9), second, {"epoch": second // 10, "tokens": 10}),) for second in range(20)}
    records = [record(second, {"gpu.0.powerWatts": 100.0}, gpus=1, steps=steps[second]) for second in range(20)]
    path = write(tmp_path / "run.jsonl", records)
    lines = report(path, "--by", "epoch", "--price", "0.36 EUR", "--carbon", "360").splitlines()
    assert "energy of 1 device: 1900 J, 0.00019 EUR at 0.36 EUR per kWh" in lines
    assert "energy of 1 device: 1900 J, 0.19 g CO2e at 360 g per kWh" in lines
    assert [line.split() for line in lines[-7:-4]] == [
        ["seconds", "power", "mean", "energy,", "J", "steps", "tokens/s", "tokens/J", "EUR"],
        ["epoch", "0", "9.0", "100.0", "W", "900", "10", "11.1", "0.111", "9e-05"],
        ["epoch", "1", "10.0", "100.0", "W", "1000", "10", "10.0", "0.1", "0.0001"],
    ]
    assert [line.split() for line in lines[-3:]] == [["g", "CO2e"], ["epoch", "0", "0.09"], ["epoch", "1", "0.1"]]
    assert "## By epoch" in report(path, "--by", "epoch", "--format", "markdown")
    found = json.loads(report(path, "--by", "epoch", "--price", "0.36", "--format", "json"))
    assert [(one["name"], one["energy_joules"]) for one in found["periods"]] == [("epoch 0", 900.0), ("epoch 1", 1000.0)]
    assert (found["energy"]["cost"], found["energy"]["carbon_grams"]) == (pytest.approx(0.00019), None)
    assert "periods" not in summary(path) and summary(path)["energy"]["cost"] is None


def test_devices_by_the_hour_and_work_by_the_mean_power_of_one(tmp_path: Path) -> None:
    """Beside the price of the energy: two devices of 100 W and 300 W for an hour, gaps included, and 10 tokens a second."""
    watts = {"gpu.0.powerWatts": 100.0, "gpu.1.powerWatts": 300.0}
    records = [
        record(second, watts, gpus=2, steps=(Step(int((START + second) * 1e9), second, {"tokens": 360.0, **(RATES if second else {})}),))
        for second in range(0, 3601, 36)
    ]
    path = write(tmp_path / "run.jsonl", records)
    prices = ("--price", "0.30EUR/kWh", "--price", "2.5 USD/h")
    lines = report(path, *prices).splitlines()
    assert "energy of 2 devices: 0.400 kWh, 0.12 EUR at 0.3 EUR per kWh" in lines
    assert "2 device hours of 2 devices: 5.00 USD at 2.5 USD per hour" in lines
    assert "tokens: 10.0 per second, 0.025 per joule (0.05 by the mean power of one device)" in lines
    found = json.loads(report(path, *prices, "--format", "json"))
    assert found["rent"] == {"device_hours": 2.0, "devices": 2, "price": {"amount": 2.5, "currency": "USD"}, "cost": 5.0}
    assert found["work"]["tokens"]["per_joule_of_mean_device"] == pytest.approx(10 / 200)
    page = tmp_path / "run.html"
    report(path, *prices, "--html", str(page))
    assert "2 device hours, at 2.5 USD per hour" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--by", "epcoh"], "Did you mean 'epoch'?"),
        (["--price", "much"], "'much' is not a price: write 0.30 or 0.30EUR for a kilowatt-hour, 2.5USD/h for an hour"),
        (["--price", "1/h", "--price", "2USD/h"], "--price twice: give one for a kilowatt-hour and one for an hour"),
        (["--carbon", "-1"], "'-1' is not a number of grams"),
        (["--compare", "{other}", "--by", "epoch"], "--compare excludes --shape and --by"),
    ],
)
def test_options_that_cannot_be_used(tmp_path: Path, arguments: list[str], words: str) -> None:
    """One line says why."""
    step = Step(START * 10**9, 1, {"epoch": 1})
    path = write(tmp_path / "run.jsonl", [record(0, {"gpu.0.gpu": 1}, steps=(step,)), record(1, {"gpu.0.gpu": 1})])
    done = call("report", path, *(argument.format(other=path) for argument in arguments))
    assert (done.returncode, done.stdout) == (2, "") and words in done.stderr and done.stderr.count("\n") == 1


def test_steps_that_came_after_the_last_reading_count(tmp_path: Path) -> None:
    """A monitor that stops writes them with that reading once more; that is no reading that is there twice."""
    steps = [Step(int((START + second) * 1e9), second, {"step_seconds": 1.0}) for second in (1, 2, 3)]
    records = [record(0, {}), record(2, {}, steps=tuple(steps[:2])), record(2, {}, steps=tuple(steps[2:]))]
    found = summary(write(tmp_path / "run.jsonl", records))
    assert (found["readings"], found["repeated"], found["step_times"][0]["count"]) == (2, 0, 3)


def test_no_line_is_wider_than_eighty_columns(tmp_path: Path) -> None:
    """However long names are, and whatever there is to say: findings, gaps, work, costs, a comparison."""
    records = []
    for rank in range(2):
        for second in (*range(20), *range(90, 130)):
            steps = (Step(int((START + second) * 1e9), second, {"epoch": second // 40, "loss": 1.0, "tokens": 10**6, **RATES}, rank),)
            values: dict[str, int | float] = {f"gpu.{number}.powerWatts": 10_000.0 + second for number in range(8)}
            values |= {f"gpu.{number}.gpu": 100.0 for number in range(8)} | {f"gpu.{number}.temp": 100 for number in range(7)}
            values |= {f"gpu.{number}.memoryAllocatedBytes": 1000 * GIB for number in range(8)}
            values |= {f"gpu.{number}.throttle.swPowerCap": 1 for number in range(8)}
            host = "a-node-with-a-rather-long-name.cluster.example.org"
            records.append(record(second, values, host=host, gpus=8, steps=steps, rank=str(rank)))
    judged = [
        Finding("a_rule", "warning", f"gpu.{key}", f"{'much is wrong ' * 9}{key % 3}", 1.0, 0.0, START * 10**9, None, "")
        for key in range(8)
    ]
    a = write(tmp_path / "a.jsonl", records)
    b = write(tmp_path / "b.jsonl", [one._replace(findings=Findings(tuple(judged), (), LACKS)) for one in records])
    costs = ("--price", "0.3EUR", "--price", "2USD/h", "--carbon", "380")
    for arguments in ((a, *costs, "--by", "epoch"), (b, *costs), (a, "--compare", b)):
        done = call("report", *arguments)
        assert done.returncode == 0
        wide = [line for line in done.stdout.splitlines() if len(line) > 80]
        assert not wide


def test_what_is_known_is_not_said_again(tmp_path: Path) -> None:
    """What a device that was lost cannot tell, what a rule did find, and that nothing is logged where something is."""
    places = ("gpu.0", "gpu.1", "gpu.2", "gpu.3")
    ended = [Finding("device_lost", "critical", "gpu.3", "lost", 1.0, 0.0, START * 10**9, None, "reset it")]
    ended += [Finding("hot", "warning", key, "above 80 °C", 83.0, 80.0, START * 10**9, None, "fans") for key in places[:3]]
    lacks = (
        CannotTell("hot", places, "temp", "device_lost"),
        CannotTell("leak", ("gpu.3",), "memoryAllocated", "device_lost"),
        CannotTell("gradient", (), "grad_norm", "not_logged", "a rule about a training run: no program logs here"),
        CannotTell("loss_spike", (), "loss", "not_logged", "a rule about a training run: no program logs here"),
        CannotTell("hang", (), "*", "not_logged", "a rule about a training run: no program logs here"),
    )
    steps = {second: (Step(int((START + second) * 1e9), second, {"train/loss": 1.0}),) for second in range(5)}
    records = [
        record(second, {"gpu.0.gpu": 1}, gpus=4, steps=steps[second])._replace(findings=Findings(tuple(ended), (), lacks))
        for second in range(5)
    ]
    path = tmp_path / "run.jsonl"
    with exporting(JsonlExporter(str(path))) as exporter:
        for one in records:
            exporter.export(one)
    lines = unfolded(report(str(path)))
    told = [line for line in lines if line.startswith(("warning", "critical", "not judged"))]
    assert told == [
        "critical: device_lost, gpu.3, 2026-01-01T00:00:00Z to the end: lost",
        "warning: hot, gpu.0 to gpu.2, 2026-01-01T00:00:00Z to the end: above 80 °C",
        "not judged: gradient: the program logs no grad_norm",
    ]
