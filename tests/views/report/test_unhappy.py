"""Recordings that are empty, short, cut, growing, mixed, of clocks that disagree: a report, or a sentence that says why there is none."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from accelmetrics.schemas.record import Record
from accelmetrics.views.report.making import CHARTED, Wanted, report_of_files
from accelmetrics.views.report.run_report import RunReport
from tests.cli.shell import call
from tests.cli.test_report import START, record, report, write
from tests.schemas.test_lines import written
from tests.views.report.test_making import made


def readings(number: int = 20, first: float = 0.0, rank: str = "") -> list[Record]:
    return [record(first + second, {"gpu.0.powerWatts": 100.0, "gpu.0.gpu": 50}, gpus=1, rank=rank) for second in range(number)]


def of(*paths: Path) -> RunReport:
    found = report_of_files([str(path) for path in paths], Wanted(series=CHARTED))
    assert found is not None
    return found


def test_one_reading_has_values_and_no_energy() -> None:
    """It lasts no time; nothing is divided by it."""
    found = made(readings(1))
    (stream,) = found.streams
    assert (stream.begin, stream.end, stream.interval) == (START, START, 0.0)
    assert found.document["devices"]["gpu.0"]["utilization_percent"]["mean"] == 50.0
    assert found.document["energy"]["joules"] is None
    assert [one.mean for one in stream.series if one.measure == "power_watts"] == [[100.0]]


@pytest.mark.parametrize("share", [0.4, 0.9])
def test_a_compressed_file_that_is_cut_gives_what_is_there(tmp_path: Path, share: float) -> None:
    """And a warning that says so."""
    path = tmp_path / "run.jsonl.gz"
    packed = gzip.compress(b"".join(written(*readings(400))), 1)
    path.write_bytes(packed[: int(len(packed) * share)])
    found = of(path)
    assert 0 < found.document["readings"] < 400
    assert any("the compressed file is cut" in warning for warning in found.warnings)


def test_a_recording_that_grows_while_it_is_read(tmp_path: Path) -> None:
    """Whole lines count; the digest is of the file as it was at its beginning."""
    path = tmp_path / "run.jsonl"
    lines = written(*readings(30))
    path.write_bytes(b"".join(lines[:20]) + lines[20][:40])
    found = of(path)
    assert found.document["readings"] == 19  # the first line is a header
    assert found.files[0][3] == 1  # that could not be read
    with path.open("ab") as file:
        file.write(lines[20][40:] + b"".join(lines[21:]))
    assert (of(path).document["readings"], of(path).files[0][3]) == (30, 0)


def test_lines_of_every_release_in_one_file(tmp_path: Path) -> None:
    """Whole documents of the first, lines below a header of this one, and what a later one adds."""
    later = [json.dumps({**json.loads(line), "unheard_of": [1]}).encode() + b"\n" for line in written(*readings(5, 10.0))]
    path = tmp_path / "run.jsonl"
    old = b"".join(json.dumps(one.to_dict()).encode() + b"\n" for one in readings(5))
    path.write_bytes(old + b"".join(written(*readings(5, 5.0))) + b"".join(later))
    found = of(path)
    assert (found.document["readings"], found.document["gaps"], found.warnings) == (15, [], ())


def test_ranks_whose_clocks_disagree_are_told_by_their_own(tmp_path: Path) -> None:
    """An hour apart: neither has a gap, and each has its readings."""
    paths = [tmp_path / f"{rank}.jsonl" for rank in (0, 1)]
    for rank, path in enumerate(paths):
        write(path, readings(20, 3600.0 * rank, rank=str(rank)))
    found = of(*paths)
    assert found.document["gaps"] == []
    assert [(stream.label, stream.readings, stream.end - stream.begin) for stream in found.streams] == [
        ("rank 0", 20, 19.0),
        ("rank 1", 20, 19.0),
    ]


def test_a_clock_that_is_set_back_keeps_series_in_order() -> None:
    """The readings of both times are there; the set-back is a gap."""
    (stream,) = made([*readings(20, 100.0), *readings(10, 50.0)]).streams
    assert list(stream.times) == sorted(stream.times)
    assert sum(value is not None for value in stream.series[0].mean) == 30
    assert [one.end < one.begin for one in stream.marks if one.kind == "gap"] == [True]


def test_a_device_that_gives_nothing_at_all_is_told() -> None:
    """With a dash; its energy is not made up, and the sum says who is silent."""
    found = made([record(second, {"gpu.0.powerWatts": 100.0}, gpus=2) for second in range(5)])
    assert (found.document["energy"]["devices"], found.document["energy"]["silent"]) == (1, 1)
    assert found.document["devices"]["gpu.1"]["energy"] is None


def test_an_empty_file_beside_another_is_no_reason_to_refuse(tmp_path: Path) -> None:
    """Alone it is: the command names the files."""
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    full = write(tmp_path / "full.jsonl", readings(3))
    assert "3 readings" in report(str(empty), full)
    done = call("report", full, "--compare", str(empty))
    assert (done.returncode, done.stdout) == (1, "") and f"no records in {empty}" in done.stderr


def test_no_recording_changes_the_terminal_on_which_it_is_told(tmp_path: Path) -> None:
    """Names of hosts and ranks come from other machines: a control character in them is a question mark."""
    evil = "node\x1b]0;title\x07\x1b[2J"
    runs = [
        [record(second, {"gpu.0.powerWatts": 100.0, "gpu.0.throttle.swPowerCap": 1}, gpus=1, host=f"{evil}{number}") for second in range(9)]
        for number in range(2)
    ]
    path = write(tmp_path / "run.jsonl", [one for run in runs for one in run])
    for done in (report(path), report(path, "--format", "markdown"), report(path, "--compare", write(tmp_path / "b.jsonl", runs[0]))):
        assert done.replace("\n", "").isprintable()
        assert "node?]0;title??[2J1" in done


@pytest.mark.parametrize(
    "target", [("--html", "none/run.html"), ("--html", "folder"), ("--html", "file/run.html"), ("--plots", "file/plots")]
)
def test_what_cannot_be_written_is_told_before_anything_is_read(tmp_path: Path, target: tuple[str, str]) -> None:
    """A million lines take a minute. The recording is missing too, which is found out later."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    option, place = target
    done = call("report", str(tmp_path / "run.jsonl"), option, str(tmp_path / place))
    assert done.returncode == 1
    assert done.stdout == "" and done.stderr.startswith(f"accelmetrics report: cannot write {tmp_path / place}")


def test_an_interruption_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither half a page nor a temporary one; the page of an earlier report stays."""
    path = write(tmp_path / "run.jsonl", readings())
    page = tmp_path / "run.html"
    page.write_text("earlier")

    def interrupted(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("accelmetrics.exporters.files.os.fsync", interrupted)
    done = call("report", path, "--html", str(page))
    assert done.returncode != 0
    assert sorted(one.name for one in tmp_path.iterdir()) == ["run.html", "run.jsonl"]
    assert page.read_text() == "earlier"
