"""``csv``: columns, what is missing, and what happens when a column comes late."""

from __future__ import annotations

import csv
import errno
from pathlib import Path

import pytest
from hypothesis import example, given, settings, strategies as st

from accelmetrics.exporters import csv as module
from accelmetrics.exporters.csv import CsvExporter, columns_in, csv_text
from accelmetrics.schemas.errors import DocumentError, Reason, Unavailable
from accelmetrics.schemas.lines import files_of
from accelmetrics.schemas.record import Record, Step
from accelmetrics.schemas.snapshot import Snapshot
from tests.exporters.files_tools import failing, numbered, rows
from tests.support.exporting import exporting


def put(path: Path, *records: Record) -> None:
    with exporting(CsvExporter(path)) as exporter:
        for record in records:
            exporter.export(record)


def small(number: int, **metrics: float) -> Record:
    """A record with little in it."""
    return Record(Snapshot((1_790_000_000 + number) * 10**9, "node-1", dict(metrics)))


def test_a_row_holds_the_record(tmp_path: Path) -> None:
    """Metrics under their keys, what was logged, labels: each reads back as the number or text that it was."""
    path = tmp_path / "run.csv"
    records = [numbered(0, gpus=2), numbered(1, gpus=2)]
    with exporting(f"csv:{path}") as exporter:
        for record in records:
            exporter.export(record)
    found = rows(path)
    assert [row["timestamp"] for row in found] == [record.snapshot.timestamp for record in records]
    for row, record in zip(found, records, strict=True):
        assert next(iter(row)) == "timestamp"
        assert {key: float(row[key]) for key in record.snapshot.metrics} == record.snapshot.metrics
        assert {key: row[f"label.{key}"] for key in record.labels} == record.labels
        assert (row["step"], row["loss"], row["learning_rate"]) == ("7", "0.25", "0.0003")
        assert "gpu.1.fanSpeed" not in row


def test_missing_is_empty(tmp_path: Path) -> None:
    """A value that is missing leaves its field empty, and a zero is a zero."""
    path = tmp_path / "run.csv"
    put(path, small(0, a=0.0, b=2), small(1, a=1.5), small(2, b=0))
    assert [(row["a"], row["b"]) for row in rows(path)] == [("0.0", "2"), ("1.5", ""), ("", "0")]
    assert len(files_of(path)) == 1


def test_a_late_column_begins_a_new_file(tmp_path: Path) -> None:
    """A value without a column closes the file; the next one has all columns so far, so that nothing goes back and forth."""
    path = tmp_path / "run.csv"
    put(path, small(0, a=1), small(1, a=1, b=2), small(2, a=3), small(3, b=4), small(4, c=5))
    first, second, third = files_of(path)
    assert first.read_text() == "timestamp,a\n2026-09-21T14:13:20.000000Z,1\n"
    assert second.read_text().splitlines()[0] == "timestamp,a,b"
    assert [row["b"] for row in rows(second)] == ["2", "", "4"]
    assert third.read_text().splitlines() == ["timestamp,a,b,c", "2026-09-21T14:13:24.000000Z,,,5"]


def test_what_is_missing_for_now_has_its_column(tmp_path: Path) -> None:
    """A rate that needs a second reading does not close the first file; what the hardware never gives has no column."""
    path = tmp_path / "run.csv"
    reasons = {"rate": Unavailable(Reason.NEEDS_INTERVAL), "never": Unavailable(Reason.NOT_SUPPORTED)}
    put(path, Record(Snapshot(1_790_000_000 * 10**9, "node-1", {"a": 1}, unavailable=reasons)), small(1, a=1, rate=2.5))
    assert path.read_text().splitlines()[0] == "timestamp,a,rate"
    assert [row["rate"] for row in rows(path)] == ["", "2.5"]


def test_columns_of_a_file_that_is_added_to(tmp_path: Path) -> None:
    """A file that is there keeps its columns and their order, by whichever exporter it is added to."""
    path = tmp_path / "run.csv"
    put(path, small(0, b=1, a=2))
    put(path, small(1, a=3), small(2, a=4, b=5))
    assert path.read_text().splitlines()[0] == "timestamp,b,a"
    assert [(row["a"], row["b"]) for row in rows(path)] == [("2", "1"), ("3", ""), ("4", "5")]


def test_a_new_file_has_the_columns_of_the_last(tmp_path: Path) -> None:
    """Closing a file by size does not lose the columns of values that are missing just then."""
    path = tmp_path / "run.csv"
    with exporting(CsvExporter(path, max_bytes=1)) as exporter:
        for record in (small(0, a=1, b=2), small(1, a=3), small(2, b=4)):
            exporter.export(record)
    assert [part.read_text().splitlines()[0] for part in files_of(path)] == ["timestamp,a,b"] * 3


@pytest.mark.parametrize("left", [1, 10, -1])
def test_a_cut_row_is_removed(tmp_path: Path, left: int) -> None:
    """A row without its end is removed, even one that looks whole: of 12.5 may be left 12. So is a cut header."""
    path = tmp_path / "run.csv"
    put(path, small(0, a=1), small(1, a=12.5))
    header, first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(header + first + second[:left])
    put(path, small(2, a=3))
    assert [row["a"] for row in rows(path)] == ["1", "3"]
    path.write_bytes(header[:left])
    put(path, small(3, a=4))
    assert [row["a"] for row in rows(path)] == ["4"]


def test_texts_stay_in_their_field(tmp_path: Path) -> None:
    """Quotes, commas and line ends in labels and keys neither break a row nor make a column new at every record."""
    path = tmp_path / "run.csv"
    label = 'a "b", c\r\nd\0\udcff'
    for number in range(2):
        put(path, small(number, **{"disk./mnt/a,\n\udcff.usageGB": 1})._replace(labels={"x,\n": label}))
    assert len(path.read_bytes().splitlines()) == 3
    assert [row["label.x,\\n"] for row in rows(path)] == ['a "b", c\\r\\nd\\0\\udcff'] * 2
    assert [row["disk./mnt/a,\\n\\udcff.usageGB"] for row in rows(path)] == ["1", "1"]


def test_logged_numbers_do_not_hide_metrics(tmp_path: Path) -> None:
    """A logged number with a metric's name has a column of its own; of several steps in one interval the row has the latest."""
    path = tmp_path / "run.csv"
    steps = (Step(0, 1, {"loss": 2.0, "cpu": 1, "timestamp": 5}), Step(1, 2, {"loss": 1.0}))
    put(path, small(0, cpu=50)._replace(steps=steps))
    (row,) = rows(path)
    assert row == {
        "timestamp": "2026-09-21T14:13:20.000000Z",
        "cpu": "50",
        "step": "2",
        "loss": "1.0",
        "training.cpu": "1",
        "training.timestamp": "5",
    }


def test_what_is_not_finite_is_refused(tmp_path: Path) -> None:
    """No row says nan."""
    with exporting(CsvExporter(tmp_path / "run.csv")) as exporter:
        for begun in (False, True):
            with pytest.raises(DocumentError, match="a = inf is not finite"):
                exporter.export(small(0, a=float("inf")))
            if not begun:
                exporter.export(small(1, a=1))


def test_a_common_dialect_of_csv(tmp_path: Path) -> None:
    """Python's sniffer finds commas and a header."""
    path = tmp_path / "run.csv"
    put(path, *(small(number, power=300.5 + number, temperature=40) for number in range(5)))
    text = path.read_text()
    assert csv.Sniffer().sniff(text).delimiter == ","
    assert csv.Sniffer().has_header(text)


def test_files_closed_for_a_new_column_count_among_those_that_are_kept(tmp_path: Path) -> None:
    """The oldest go, whatever they were closed for."""
    path = tmp_path / "run.csv"
    with exporting(f"csv:{path}?keep=2") as exporter:
        for number in range(5):
            exporter.export(small(number, **dict.fromkeys("abcde"[: number + 1], number)))
    assert [row["a"] for row in rows(path)] == ["2", "3", "4"]


def test_a_file_that_cannot_be_renamed_keeps_its_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has columns goes on being written; a record with a new one waits, and nothing is left of the tries."""
    path = tmp_path / "run.csv"

    with exporting(CsvExporter(path, max_bytes=1)) as exporter:
        exporter.export(small(0, a=1))
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", failing(errno.EBUSY))
            exporter.export(small(1, a=2))
            for _ in range(3):
                with pytest.raises(OSError, match="it cannot be renamed: Device or resource busy"):
                    exporter.export(small(2, b=3))
            exporter.export(small(3, a=4))
        assert [entry.name for entry in tmp_path.iterdir()] == ["run.csv"]
        assert [row["a"] for row in rows(path)] == ["1", "2", "4"]
        exporter.export(small(4, b=5))
    assert len(files_of(path)) == 2


KEYS = ["cpu", "gpu.0.temp", "disk./a,b.x", 'disk./%s".x', "disk./\n.x", "disk./\udcff.x", "step", "label.team"]
NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**70), 2**70) | st.booleans()
LOGGED = st.dictionaries(st.sampled_from(["loss", "cpu", "timestamp", "a,b"]), st.floats() | st.integers(0, 9), max_size=3)
RECORDS = st.builds(
    Record,
    st.builds(Snapshot, st.integers(0, 10**18), st.just("node"), st.dictionaries(st.sampled_from(KEYS), NUMBERS)),
    st.dictionaries(st.sampled_from(["team", "a,b"]), st.text(max_size=5) | st.sampled_from(["%s", 'a"b', "a,b", "a\nb"])),
    st.lists(st.builds(Step, st.just(1), st.none() | st.integers(0, 9), LOGGED), max_size=2).map(tuple),
)


def row_of(one: Record) -> dict[str, object]:
    """The fields of a record by column, each formatted by itself."""
    numbers = {module._plain(key): value for key, value in one.snapshot.metrics.items()}
    labels = {module._plain(f"label.{name}"): module._plain(value) for name, value in one.labels.items()}
    return {"timestamp": one.snapshot.timestamp, **numbers, **module._logged(one), **labels}


@settings(max_examples=50, deadline=None)
@example([Record(Snapshot(1, "node", {"cpu": value}), {"team": "%s,"}) for value in (1, 2.5, 10**400, 1e300, True)] * 2)
@example([Record(Snapshot(1, "node", values)) for values in ({"a": 1, "b": 2}, {"b": 2}, {"b": 3, "a": 4}, {"b": 5, "c": 6}, {"b": 7})])  # type: ignore[arg-type]
@example([Record(Snapshot(1, "node", {"label.team": number, "cpu": 2}), {"team": "x"}) for number in (1, 2, 3)])
@given(st.lists(RECORDS, min_size=2, max_size=5))
def test_what_is_kept_is_what_would_be_made_anew(several: list[Record]) -> None:
    """Whatever records follow each other in a file, a row is, byte for byte, what the standard library writes of its fields."""
    exporter = CsvExporter("/dev/null")
    text = exporter.lines(several[0], b"", fresh=True)
    assert text is not None
    head = text[: text.index(b"\n") + 1]
    for one in several:
        cells, columns = row_of(one), columns_in(head)
        expected = csv_text([[cells.get(column, "") for column in columns]]) if cells.keys() <= set(columns) else None
        assert exporter.lines(one, head, fresh=False) == expected
