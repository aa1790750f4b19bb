"""``dump``: every format, one reading or many, on a machine whose values are known."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from accelmetrics.cli import dump, options
from accelmetrics.cli.main import main
from accelmetrics.sampling.sampler import Sampler
from accelmetrics.schemas.errors import Reason, SourceError
from tests.cli.machines import Printed, Rig
from tests.cli.shell import Tree, call, document, environment
from tests.exporters.test_influx import read

RIG = ["dump", "--backends", "rig"]


def test_a_node_is_a_line_a_device_and_a_remark_a_cause(rig: Rig, printed: Printed) -> None:
    """At 80 columns, in a pipe as on a terminal; every metric is one option away."""
    for number in (0, 1):
        rig.backend.device(number).set(temp=97)
    rig.backend.device(2).set(gpu=12.5, memoryAllocatedBytes=61 * 1024**3, enforcedPowerLimitWatts=700.0)
    lines = printed().splitlines()
    assert max(map(len, lines)) <= 80
    (heading,) = [line.split() for line in lines if "DEVICE" in line]
    assert heading == ["DEVICE", "NAME", "UTIL", "MEMORY/GiB", "POWER/W", "TEMP/°C", "PROC", "STATE"]
    hot, _, busy = (next(line for line in lines if f"gpu.{number} " in line) for number in range(3))
    assert (hot[0], hot.split()[-3], hot.split()[-1]) == ("X", "97", "critical")
    assert [cell for cell in busy.split() if cell in ("13", "%", "61.0/80.0", "103/700", "42", "ok")] == [*busy.split()[3:7], "42", "ok"]
    assert [line for line in lines if line.startswith("X gpu.0, gpu.1: 97 °C, above 80 °C")]
    assert any("powerWatts" in line for line in printed("--all").splitlines())


def test_some_metrics_of_all_devices_side_by_side(printed: Printed) -> None:
    """A missing value has the word for it."""
    head, *rows = printed("temp", "fanSpeed").splitlines()
    assert head.split() == ["gpu.0", "gpu.1", "gpu.2"]
    assert [row.split() for row in rows if row] == [["temp", "40", "°C", "41", "°C", "42", "°C"], ["fanSpeed", *["n/a"] * 3]]


def test_json_is_one_document(printed: Printed) -> None:
    """Nothing but the document, on one line."""
    text = printed("--json")
    snapshot = document(text)
    assert text.count("\n") == 1
    assert snapshot.metrics["gpu.1.powerWatts"] == 101.5
    assert snapshot.unavailable["gpu.2.fanSpeed"].detail == "passively cooled"


@pytest.mark.parametrize("spelling", [["--json"], ["--format", "json"], ["--json", "--format", "json"], ["--format", "jsonl"]])
def test_spellings_of_json(spelling: list[str], printed: Printed) -> None:
    """All of them give the document."""
    assert document(printed(*spelling)).metrics["gpu.0.temp"] == 40


def test_flat_is_the_flat_dict_alone(printed: Printed) -> None:
    """The same numbers as in the document's metrics."""
    flat = json.loads(printed("--flat"))
    assert flat["gpu.2.powerWatts"] == 102.5
    assert all(isinstance(value, int | float) for value in flat.values())
    assert len(printed("--flat", "--count", "2", "--interval", "0.01").splitlines()) == 2


def test_selection_of_devices(rig: Rig, printed: Printed) -> None:
    """Numbers, ranges, keys and UUIDs."""
    uuid = rig.backend.device(2).identity.uuid
    assert [device.key for device in document(printed("--json", "--gpus", f"gpu.0,{uuid}")).devices] == ["gpu.0", "gpu.2"]
    assert [device.key for device in document(printed("--json", "--gpus", "1-2")).devices] == ["gpu.1", "gpu.2"]


def test_selection_of_metrics(printed: Printed) -> None:
    """Presets, names, patterns and exclusions; what no metric is called is refused."""
    flat = json.loads(printed("--flat", "--metrics", "core,fanSpeed,-gpu.2.*,-memory*"))
    assert flat == {"gpu.0.powerWatts": 100.5, "gpu.0.temp": 40, "gpu.1.powerWatts": 101.5, "gpu.1.temp": 41}
    assert set(document(printed("--json", "--metrics=-gpu.0.*,-temp,-core")).unavailable) == {"gpu.1.fanSpeed", "gpu.2.fanSpeed"}
    assert call(*RIG, "--metrics", "powerWats").returncode == 2


def test_an_indented_document(printed: Printed) -> None:
    """By as many spaces as were asked for, also where there is no terminal."""
    text = printed("--json", "--indent", "3")
    assert text.startswith('{\n   "schema_version"')
    assert document(text).devices
    assert printed("--indent", "2").startswith('{\n  "schema_version"')
    assert printed("--flat", "--indent", "2").startswith('{\n  "gpu.0.')


@pytest.mark.usefixtures("rig")
def test_a_process_that_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Once, and what there is is printed all the same."""
    assert main([*RIG, "--pid", "2147483646"]) == 0
    captured = capsys.readouterr()
    assert captured.err.count("there is no process 2147483646: nothing of it can be read") == 1
    assert captured.out


def test_what_the_sources_are_told(rig: Rig, printed: Printed) -> None:
    """The watched process, its descendants, the mount points."""
    pid = os.getppid()
    printed("--pid", str(pid), "--children", "--disk-path", "/", "--disk-path", "/data")
    told = rig.backend.options[-1]
    assert (told.pid, told.children, told.disk_paths) == (pid, True, ("/", "/data"))


def test_timeout_is_for_opening_too(rig: Rig, printed: Printed) -> None:
    """A source that does not open in time is in the document, and it is no failure of the command."""
    rig.backend.opening.hang()
    snapshot = document(printed("--json", "--timeout", "0.1"))
    rig.backend.opening.release()
    assert snapshot.backends[0].status == "timed_out"


def test_a_source_that_fails_is_no_failure_of_the_command(rig: Rig, printed: Printed) -> None:
    """The document says it."""
    rig.backend.opening.fail(SourceError(Reason.DRIVER_UNAVAILABLE, "the driver is not loaded"))
    assert document(printed("--json")).backends[0].detail == "the driver is not loaded"


class Time:
    """Stands for the module ``time``: sleeping takes no time, and how long is noted."""

    def __init__(self) -> None:
        self.now = 1024.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    """The time by which ``dump`` waits."""
    made = Time()
    monkeypatch.setattr(dump, "time", made)
    return made


@pytest.mark.parametrize(
    ("rated", "given", "slept"),
    [(True, [], [0.2]), (True, ["--settle", "0"], []), (False, ["--settle", "30"], [])],
    ids=["by default", "not wanted", "not needed"],
)
def test_settle_takes_a_second_reading_where_a_rate_needs_one(
    rig: Rig, clock: Time, printed: Printed, rated: bool, given: list[str], slept: list[float]
) -> None:
    """By default the rate is there, after a fifth of a second; with one reading it is missing, with its reason."""
    if rated:
        rig.rated()
    snapshot = document(printed("--json", *given))
    assert (snapshot.metrics.get("gpu.0.pcieTxBytes") == 1024) == bool(slept)
    assert (clock.slept, rig.backend.device(0).reads) == (slept, 1 + len(slept))
    if rated and not slept:
        assert snapshot.unavailable["gpu.0.pcieTxBytes"].reason == Reason.NEEDS_INTERVAL


def test_count_gives_a_document_a_line(printed: Printed) -> None:
    """JSON lines also where --json was asked for."""
    lines = printed("--json", "--interval", "0.02", "--count", "4").splitlines()
    assert len(lines) == 4
    assert len({document(line).timestamp for line in lines}) == 4


def test_count_1_with_an_interval_is_one_line(clock: Time, printed: Printed) -> None:
    """It waits for no further tick."""
    assert len(printed("--interval", "60", "--count", "1").splitlines()) == 1
    assert clock.slept == []


@pytest.mark.parametrize("interval", ["1e-9", "1e-320"])
def test_an_interval_may_be_shorter_than_a_reading(interval: str, printed: Printed) -> None:
    """One reading follows the other."""
    assert len(printed("--interval", interval, "--count", "50").splitlines()) == 50


def test_the_interval_is_an_absolute_schedule(rig: Rig, clock: Time) -> None:
    """Readings that take their time put nothing off; ticks that are missed are left out."""
    stamps = []
    with Sampler([rig.backend]) as sampler:
        for number, _ in enumerate(dump.readings(sampler.sample, 0.125, 6)):
            stamps.append(clock.now)
            clock.now += {1: 0.0625, 2: 0.3125}.get(number, 0.0)
    assert [(stamp - stamps[0]) / 0.125 for stamp in stamps] == [0, 1, 2, 5, 6, 7]


def _rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_is_a_row_a_reading_and_a_column_a_key(rig: Rig, printed: Printed) -> None:
    """A rate has its column from the first reading on; what the device does not have has none."""
    rig.rated()
    rows = _rows(printed("--format", "csv", "--interval", "0.02", "--count", "3"))
    assert [row["gpu.0.pcieTxBytes"] for row in rows] == ["", "1024", "1024"]
    assert {row["gpu.1.powerWatts"] for row in rows} == {"101.5"}
    assert list(rows[0])[:2] == ["timestamp", "hostname"]
    assert "gpu.0.fanSpeed" not in rows[0]
    assert len({row["timestamp"] for row in rows}) == 3


def test_influx_is_a_point_a_device_at_each_reading(rig: Rig, printed: Printed) -> None:
    """Under the device's kind, with what it is as tags; what is missing is no field."""
    points = [read(line) for line in printed("--format", "influx", "--interval", "0.01", "--count", "2").splitlines()]
    assert [(point.measurement, point.tags["accelerator"], point.fields["powerWatts"]) for point in points] == 2 * [
        ("gpu", f"gpu.{number}", 100.5 + number) for number in range(3)
    ]
    assert not any("fanSpeed" in point.fields for point in points)
    assert points[0].time < points[3].time


def test_csv_says_what_it_leaves_out(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    """A key that turns up below the header is named once."""
    device = rig.backend.device(1)
    ticks: list[int] = []

    def turn_up() -> int:
        ticks.append(1)
        if len(ticks) == 2:
            device.set(memoryTemp=60)
        return 41

    device.set(temp=turn_up)
    assert main([*RIG, "--format", "csv", "--interval", "0.02", "--count", "4"]) == 0
    out, err = capsys.readouterr()
    assert "memoryTemp" not in out
    assert err.count("gpu.1.memoryTemp") == 1


def test_csv_has_room_for_a_process_that_comes_later() -> None:
    """What the watched process will give on a GPU has its columns from the start of a stream."""
    from accelmetrics.cli.formats import columns
    from accelmetrics.schemas.snapshot import Snapshot
    from tests.schemas.samples import AMD, NVIDIA

    snapshot = Snapshot(0, "host", {"gpu.0.temp": 40}, (NVIDIA, AMD))
    assert "gpu.process.0.memoryAllocatedBytes" in columns(snapshot, repeated=True)
    assert columns(snapshot, repeated=False) == ["gpu.0.temp"]


def test_csv_goes_on_under_a_files_own_columns(rig: Rig, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second run adds rows, no second header."""
    del rig
    target = tmp_path / "run.csv"
    arguments = [*RIG, "--format", "csv", "--interval", "0.01", "--count", "2", "--output", str(target)]
    assert main([*arguments, "--gpus", "0"]) == 0
    assert main(arguments) == 0
    rows = _rows(target.read_text())
    assert len(rows) == 4
    assert list(rows[3]) == ["timestamp", "hostname", *(f"gpu.0.{name}" for name in ("powerWatts", "temp", "memoryTotalBytes"))]
    assert "gpu.1.temp" in capsys.readouterr().err


def test_csv_does_not_mix_with_a_file_of_another_kind(rig: Rig, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is left as it was."""
    del rig
    target = tmp_path / "notes.txt"
    target.write_text("dear diary\n")
    assert main([*RIG, "--format", "csv", "--count", "2", "--output", str(target)]) == 1
    assert f"cannot write {target}: its first line does not begin with the columns timestamp, hostname" in capsys.readouterr().err
    assert target.read_text() == "dear diary\n"


@pytest.mark.parametrize(
    ("given", "form"),
    [
        ([], "table"),
        (["--output", "-"], "table"),
        (["--all"], "table"),
        (["temp"], "table"),
        (["--jsonl"], "jsonl"),
        (["--csv"], "csv"),
        (["--output", "x.json"], "json"),
        (["--flat"], "json"),
        (["--format", "csv"], "csv"),
        (["--interval", "1"], "jsonl"),
        (["--count", "3"], "jsonl"),
    ],
)
def test_the_usual_format(given: list[str], form: str) -> None:
    """A table for one reading; lines for a stream; JSON into a file and for the flat dict; what was asked for otherwise."""
    parser = options.Parser.for_command("dump", "x", "")
    parser.add_options(dump.OPTIONS)
    assert dump.format_of(parser.parse_strictly(given), "--interval" in given or "--count" in given) == form


def test_count_alone_is_a_reading_a_second(clock: Time, printed: Printed) -> None:
    """And no more than were asked for; one of them is a single dump."""
    assert len(printed("--count", "3").splitlines()) == 3
    assert [round(seconds, 3) for seconds in clock.slept] == [1.0, 1.0]
    printed("--count", "1", "--settle", "0")


def test_a_tool_that_hangs_is_named_with_the_time_since_when(tmp_path: Path) -> None:
    """In the document, and by ``list``; within the shortest time in which a machine as busy as this one comes to start it."""
    tool, go = tmp_path / "rbln-smi", tmp_path / "go"
    tool.write_text(f"#!/bin/sh\nwhile [ ! -e {go} ]; do sleep 0.05; done\n")
    tool.chmod(0o755)
    env = environment(PATH=f"{tmp_path}:/usr/bin:/bin")

    def told(*arguments: str) -> subprocess.CompletedProcess[str]:
        for limit in ("0.3", "4"):
            done = call(*arguments, "--backends", "rebellions", "--timeout", limit, env=env)
            if str(tool) in done.stdout + done.stderr:
                break
        return done

    words = rf"{tool} has not answered since \d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\dZ: the driver is still being opened"
    try:
        status = document(told("dump", "--json", "--settle", "0").stdout).backends[0]
        assert (status.name, status.status) == ("rebellions", "timed_out")
        assert re.fullmatch(words, status.detail)
        assert re.search(rf"rebellions: {words}", " ".join(told("list").stderr.split()))
    finally:
        go.touch()


def test_a_machine_without_accelerators_shows_its_host_and_what_doctor_says(tree: Tree) -> None:
    """On one screen, in the doctor's own words."""
    tree.write("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 600 kB\n")
    done = call("dump", env=tree.environment())
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) <= 24
    assert any(re.match(r"memory +40 %", line) for line in lines)
    found = lines[lines.index("No accelerator was found. `accelmetrics doctor` says:") + 1 :]
    words = call("doctor", env=tree.environment()).stdout
    assert re.fullmatch(r"  nvidia +(.*)", found[0])
    for line in found[:5]:
        maker, _, why = line.strip().partition(" ")
        assert f"{maker}: not present" in words
        assert why.strip().rstrip("…") in " ".join(words.split())
    assert re.fullmatch(r"  and \d\d more makers, none of them here", found[5])
