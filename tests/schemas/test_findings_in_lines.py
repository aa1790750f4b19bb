"""Findings in recordings: written when they change, read back to where they held."""

from __future__ import annotations

import json
from pathlib import Path

from accelmetrics.schemas.lines import LineWriter
from accelmetrics.schemas.record import NO_FINDINGS, CannotTell, Finding, Findings, Record
from accelmetrics.schemas.recording import RecordFile
from accelmetrics.schemas.snapshot import Snapshot
from tests.schemas.test_lines import VALIDATOR

SECOND = 1_000_000_000
HOT = Finding("hot", "warning", "gpu.3", "core at 83 °C", 83.0, 80.0, 60 * SECOND, None, "Check the fans.")
LOST = Finding("non_finite", "critical", "rank 2", "loss is nan at step 7", 1.0, 0.0, 61 * SECOND, None, "Go back.")
LACK = CannotTell("near_slowdown", ("gpu.0", "gpu.1"), "tempLimit.slowdown", "not_supported", "NVML_ERROR_NOT_SUPPORTED")


def over(finding: Finding, at: int) -> Finding:
    """The same, when it has ended."""
    return finding._replace(until_ns=at * SECOND)


def record(at: int, findings: Findings = NO_FINDINGS) -> Record:
    """What was found at a moment, beside a reading."""
    return Record(Snapshot(at * SECOND, "node-1", {"gpu.0.temp": 70 + at}), findings=findings)


RUN = (
    record(1),
    record(2, Findings((HOT,), (), (LACK,))),
    record(3, Findings((HOT,), (), (LACK,))),
    record(4, Findings((LOST, HOT), (), (LACK,))),
    record(5, Findings((LOST,), (over(HOT, 70),), (LACK,))),
    record(6, Findings((LOST,), (over(HOT, 70),), (LACK,))),
    record(7, Findings((), (over(HOT, 70), over(LOST, 71)))),
    record(8, Findings((), (over(HOT, 70), over(LOST, 71)))),
)


def written(records: tuple[Record, ...], files: int = 1) -> list[str]:
    """The lines of a writer whose file is changed now and then."""
    writer = LineWriter("0123abcd")
    lines = []
    for number, one in enumerate(records):
        lines += writer.lines(one, fresh=number % (len(records) // files) == 0).splitlines(keepends=True)
        writer.wrote()
    return lines


def test_findings_are_written_when_they_change_and_each_end_once() -> None:
    """A run without any has nothing of them; the schema takes the lines."""
    lines = [json.loads(line) for line in written(RUN)]
    for line in lines:
        VALIDATOR.validate(line)
    readings = [line for line in lines if "metrics" in line]
    assert ["findings" in line for line in readings] == [False, True, False, True, True, False, True, False]
    assert readings[1]["findings"] == {
        "current": [
            {
                "rule": "hot",
                "severity": "warning",
                "key": "gpu.3",
                "message": "core at 83 °C",
                "value": 83.0,
                "threshold": 80.0,
                "since": "1970-01-01T00:01:00.000000Z",
                "until": None,
                "advice": "Check the fans.",
            }
        ],
        "ended": [],
        "cannot_tell": [{**LACK._asdict(), "keys": ["gpu.0", "gpu.1"]}],
    }
    assert [[one["rule"] for one in line["findings"]["ended"]] for line in readings if "findings" in line] == [
        [],
        [],
        ["hot"],
        ["non_finite"],
    ]
    assert not any("findings" in json.loads(line) for line in written((record(1), record(2))))


def test_what_was_written_is_read_back_where_it_held(tmp_path: Path) -> None:
    """What lasts stands in each record; an end in the first that told it."""
    path = tmp_path / "run.jsonl"
    path.write_text("".join(written(RUN)), encoding="utf-8")
    found = [one.findings for one in RecordFile(path)]
    assert [one.current for one in found] == [one.findings.current for one in RUN]
    assert [one.cannot_tell for one in found] == [one.findings.cannot_tell for one in RUN]
    assert [one.ended for one in found] == [(), (), (), (), (over(HOT, 70),), (), (over(LOST, 71),), ()]


def test_a_new_file_says_what_lasts(tmp_path: Path) -> None:
    """A recording that was rotated can be read without the file before."""
    path = tmp_path / "run.jsonl"
    lines = written(RUN, files=4)
    begins = [number for number, line in enumerate(lines) if line.startswith('{"schema_version"')]
    path.write_text("".join(lines[begins[1] : begins[2]]), encoding="utf-8")
    assert [one.findings.current for one in RecordFile(path)] == [(HOT,), (LOST, HOT)]


def test_a_stream_says_nothing_of_another(tmp_path: Path) -> None:
    """Two writers of one file."""
    path = tmp_path / "run.jsonl"
    other = LineWriter("89abcdef")
    lines = [*written(RUN[:3]), other.lines(record(9), fresh=True)]
    path.write_text("".join(lines), encoding="utf-8")
    assert [len(one.findings) for one in RecordFile(path)] == [0, 1, 1, 0]


def test_a_whole_document_has_all_of_them(tmp_path: Path) -> None:
    """As ``Record.to_json`` writes it; without any it has no such part."""
    path = tmp_path / "run.jsonl"
    path.write_text("".join(one.to_json() + "\n" for one in RUN), encoding="utf-8")
    assert [one.findings for one in RecordFile(path)] == [one.findings for one in RUN]
    assert "findings" not in json.loads(RUN[0].to_json())
