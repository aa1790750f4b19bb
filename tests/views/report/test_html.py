"""The page of a report: whole without scripts, safe, of bounded size, with the numbers of the document."""

from __future__ import annotations

import json
import re
import sys
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from typing import Any

import pytest

from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.record import NOT_LOGGED, CannotTell, Finding, Findings, Record
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.views.report import drawing, html
from accelmetrics.views.report.plots import FEWEST, pictures
from accelmetrics.views.report.series import BUCKETS
from tests.cli.shell import call
from tests.cli.test_report import START, record, write
from tests.views.report.runs import run
from tests.views.report.test_making import made

HOSTILE = "</script><img src=x onerror=alert(1)>"
MIB = 2**20
PICTURED = {
    "test_only_its_own_scripts_and_styles_are_allowed",
    "test_without_matplotlib_there_are_tables_and_live_plots",
    "test_a_day_of_eight_devices_is_less_than_five_megabytes",
    "test_headings_stand_over_their_numbers",
    "test_texts_of_others_are_text",
}
"""Tests that need the static pictures: to draw those of a page takes seconds."""


@pytest.fixture(autouse=True)
def pictures_where_needed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.originalname not in PICTURED:
        monkeypatch.setattr(drawing, "is_installed", lambda: False)


class Reading(HTMLParser):
    """What a page consists of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.raw: dict[str, list[str]] = {}
        self.rows: list[list[str]] = []
        self.values: list[list[str]] = []
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open.append(tag)
        if tag in {"script", "style"}:
            self.raw.setdefault(tag, []).append("")
        if tag == "tr":
            self.rows.append([])
            self.values.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append("")
        if tag == "data":
            self.values[-1].append(dict(attrs)["value"] or "")

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open[-1:] in (["script"], ["style"]):
            self.raw[self._open[-1]][-1] += data
        elif {"td", "th"} & set(self._open):
            self.rows[-1][-1] += data

    @property
    def data(self) -> Any:
        """What scripts draw."""
        return json.loads(self.raw["script"][0])


def page(records: list[Record]) -> str:
    report = made(records)
    return html.page(report, pictures(report))


def test_numbers_are_those_of_the_document(tmp_path: Path) -> None:
    """In full, in every cell of the summary."""
    path = write(tmp_path / "run.jsonl", list(run(120, 3)))
    done = call("report", path, "--html", str(tmp_path / "run.html"), "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    reading = Reading((tmp_path / "run.html").read_text())
    found = {row[0]: values for row, values in zip(reading.rows, reading.values, strict=True) if row and len(values) == 13}
    assert set(found) == set(document["devices"]) == {"gpu.0", "gpu.1", "gpu.2"}
    for key, device in document["devices"].items():
        measures = ("utilization_percent", "memory_used_bytes", "power_watts", "temperature_celsius")
        expected = [device[name][part] for name in measures for part in ("mean", "max", "p95")]
        assert [float(value) for value in found[key]] == [*expected, device["energy"]["joules"]]


def test_headings_stand_over_their_numbers() -> None:
    """At the right, as these do; with the unit where it is not in the cell, and what is of all devices told from what is of one."""
    text = page(list(run(120, 3)))
    for words in ("mean", "p95", "energy, J", "count", "samples"):
        assert f'<th scope="col" class="number">{words}</th>' in text
    for words in ("device", "over time", "throttled", "process"):
        assert f'<th scope="col">{words}</th>' in text
    for words in ("memory, GiB", "power, W", "temp, °C"):
        assert f">{words}</th>" in text
    assert "<h3>Step time, s</h3>" in text


def test_only_its_own_scripts_and_styles_are_allowed() -> None:
    """By their digests; nothing may be asked for."""
    reading = Reading(page(list(run(30, 1))))
    (policy,) = [held["content"] for tag, held in reading.tags if tag == "meta" and held.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    allowed = dict(part.split(" ", 1) for part in policy.split("; "))
    assert allowed["default-src"] == "'none'" and allowed["base-uri"] == "'none'" and allowed["form-action"] == "'none'"
    digests = [f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in reading.raw["script"][1:]]
    assert allowed["script-src"].split() == digests and len(digests) == 2
    styles = [f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in reading.raw["style"]]
    assert allowed["style-src"].split() == styles
    attributes = {name for _, held in reading.tags for name in held}
    assert not attributes & {"style", "srcset", "action"} and not any(name.startswith("on") for name in attributes)
    assert allowed["img-src"] == "data:"
    assert {(held.get("src") or "").partition(",")[0] for tag, held in reading.tags if tag == "img"} == {"data:image/png;base64"}
    assert not any(held.get("src") for tag, held in reading.tags if tag != "img")
    assert {held.get("href") for _, held in reading.tags} <= {None, "#main"}


def test_texts_of_others_are_text() -> None:
    """Hosts, devices, labels, logged names, findings: none becomes an element or ends a script."""
    records = []
    for one in run(40, 1):
        slots = [slot._replace(identity=slot.identity.__class__("gpu", "nvidia", 0, HOSTILE, "GPU-1")) for slot in one.snapshot.identities]
        snapshot = one.snapshot.__class__(one.snapshot.time_ns, HOSTILE, one.snapshot.metrics, slots)
        steps = tuple(step._replace(values={**step.values, HOSTILE: 1.0 + (step.step or 0)}) for step in one.steps)
        found = one.findings.__class__(tuple(finding._replace(message=HOSTILE, advice=HOSTILE) for finding in one.findings))
        records.append(one._replace(snapshot=snapshot, steps=steps, labels={"run_id": HOSTILE}, findings=found))
    text = page(records)
    reading = Reading(text)
    tags = [tag for tag, _ in reading.tags]
    assert tags.count("script") == 3 and "onerror" not in {name for _, held in reading.tags for name in held}
    assert HOSTILE in {plot["title"] for plot in reading.data["plots"]}
    assert text.count("&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;") > 5


def test_without_matplotlib_there_are_tables_and_live_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """No picture is promised; readings around a finding stand in a table, as ever."""
    for installed in (True, False):
        if not installed:
            monkeypatch.setitem(sys.modules, "matplotlib", None)
        reading = Reading(page(list(run(300, 2))))
        assert ("img" in {tag for tag, _ in reading.tags}) is installed
        assert sum("data-plot" in held for _, held in reading.tags) >= 8
        assert ["when", "gpu.1.gpu, %", "gpu.1.powerWatts, W", "gpu.1.temp, °C", "gpu.1.smClock, MHz"] in reading.rows
        assert any(row[:1] == ["2026-01-01 00:03:20 UTC"] and len(row) == 5 for row in reading.rows)


def noisy(readings: int, gpus: int) -> list[Record]:
    """Readings of which each is another number, as long as numbers are."""
    random = Random(1)
    names = ("gpu", "powerWatts", "temp", "smClock", "memoryTemp", "memoryAllocatedBytes", "memoryAllocated")
    return [
        record(second, {f"gpu.{number}.{name}": random.random() * 99 for number in range(gpus) for name in names}, gpus=gpus)
        for second in range(readings)
    ]


def test_a_day_of_eight_devices_is_less_than_five_megabytes() -> None:
    """However long a recording is, its series have as many points as this one's: lines cannot become longer."""
    text = page(noisy(4000, 8))
    data = Reading(text).data
    assert len(data["plots"]) == 7 and all(len(plot["lines"]) == 8 for plot in data["plots"])
    ((times,),) = data["places"]  # which all lines share
    assert BUCKETS / 2 <= len(times) <= BUCKETS
    pictures = sum(map(len, re.findall(r'src="data:image/png;base64,[^"]*"', text)))  # as large however many points there are
    per_point = (len(text.encode()) - pictures) / len(times)
    assert per_point * BUCKETS + pictures < 5 * MIB


def test_many_lines_have_fewer_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the page stays small however many metrics were recorded; peaks stay."""
    monkeypatch.setattr("accelmetrics.views.report.plots.CELLS", 3 * 8 * 7 * 150)
    records = noisy(900, 8)
    dict.update(records[555].snapshot.metrics, {"gpu.3.powerWatts": 1234.0})
    data = Reading(page(records)).data
    ((times,),) = data["places"]
    assert FEWEST / 2 <= len(times) <= 150
    (power,) = [plot for plot in data["plots"] if plot["title"] == "Power"]
    assert max(value for value in power["lines"][3]["high"] if value is not None) == 1234


def test_what_was_missing_is_told_with_its_reason(tmp_path: Path) -> None:
    """And gaps; and where all of it is from."""
    path = write(tmp_path / "run.jsonl", [record(second, {"gpu.0.gpu": second % 7}, gpus=1) for second in (*range(20), *range(90, 110))])
    done = call("report", path, "--html", str(tmp_path / "run.html"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    reading = Reading((tmp_path / "run.html").read_text())
    assert ["2026-01-01T00:00:19Z", "71.0 s"] in reading.rows
    (file,) = [row for row in reading.rows if row[:1] == [path]]
    assert file[2:] == ["40", "0", sha256(Path(path).read_bytes()).hexdigest()]


def test_a_recording_without_devices_has_a_page() -> None:
    """Of the machine alone."""
    text = page([record(second, {"cpu": 50.0 + second}, gpus=0) for second in range(5)])
    assert "The recording has no devices." in text and "Processor time of the watched process" in text


def test_one_reading_has_a_page() -> None:
    """Nothing to draw a line between."""
    assert "did not change" in page([record(0, {"gpu.0.powerWatts": 50.0}, gpus=1)]).lower()


def test_two_runs_have_one_page(tmp_path: Path) -> None:
    """Differences with how sure they are; both runs in each plot; each one's findings and files."""
    first = write(tmp_path / "a.jsonl", list(run(300, 1)))
    second = write(tmp_path / "b.jsonl", list(run(300, 1, power=200.0, host="node-2")))
    done = call("report", first, "--compare", second, "--html", str(tmp_path / "both.html"), "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    reading = Reading((tmp_path / "both.html").read_text())
    differences = {one["name"]: one for one in json.loads(done.stdout)["differences"]}
    (power,) = [(row, values) for row, values in zip(reading.rows, reading.values, strict=True) if row[:1] == ["power, W"]]
    told = differences["power_watts"]
    assert power[0][-1] == told["verdict"] == "differs"
    assert [float(value) for value in power[1][:1] + power[1][8:9]] == [told["a"]["mean"], told["delta"]]
    (plot,) = [plot for plot in reading.data["plots"] if plot["title"] == "Power"]
    assert [(line["label"], line["dashed"]) for line in plot["lines"]] == [("A gpu.0", False), ("B gpu.0", True)]
    places = [held["id"] for _, held in reading.tags if "id" in held]
    assert len(places) == len(set(places)) and {"findings-a", "findings-b", "energy", "provenance"} <= set(places)
    own = [json.loads(call("report", one, "--format", "json").stdout)["energy"]["joules"] for one in (first, second)]
    rows = dict(zip((row[0] for row in reading.rows), reading.values, strict=True))
    assert [float(value) for value in rows["energy of all devices, J"]] == own


@pytest.mark.parametrize("alike", [True, False])
def test_what_both_runs_lack_is_said_once(tmp_path: Path, alike: bool) -> None:
    """In one section, with one row for both if they lack it for the same reason."""

    def lacking(name: str, reason: str) -> str:
        records = [
            one._replace(snapshot=one.snapshot.with_values(one.snapshot.metrics, {"gpu.0.fanSpeed": Unavailable(reason, "no fan")}))
            for one in run(20, 1)
        ]
        return write(tmp_path / name, records)

    first, second = lacking("a.jsonl", "not_supported"), lacking("b.jsonl", "not_supported" if alike else "no_permission")
    assert call("report", first, "--compare", second, "--html", str(tmp_path / "both.html")).returncode == 0
    rows = [row for row in Reading((tmp_path / "both.html").read_text()).rows if "fanSpeed" in row]
    assert [row[0] for row in rows] == (["A gpu.0, B gpu.0"] if alike else ["B gpu.0", "A gpu.0"])


def test_a_page_that_cannot_be_written_is_told_and_leaves_the_old_one(tmp_path: Path) -> None:
    """Nothing half-written stays beside it either."""
    path = write(tmp_path / "run.jsonl", list(run(5, 1)))
    done = call("report", path, "--html", str(tmp_path / "no" / "run.html"))
    assert done.returncode == 1 and "cannot write" in done.stderr and "no/run.html" in done.stderr
    kept = tmp_path / "run.html"
    kept.write_text("old")
    assert call("report", str(tmp_path / "absent.jsonl"), "--html", str(kept)).returncode == 1
    assert kept.read_text() == "old"
    assert call("report", path, "--html", str(kept)).returncode == 0
    assert kept.read_text().startswith("<!DOCTYPE html>")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["run.html", "run.jsonl"]


def test_what_would_end_a_script_is_refused() -> None:
    """A part of the package that is spoiled makes no page."""
    with pytest.raises(ValueError, match="would end early"):
        html._raw("script", "let a = '</SCRIPT>'")
    assert not re.search("</script|<!--", html._raw("script", "1 < 2").text or "")


def test_what_rules_could_not_judge_is_one_row_for_each_reason() -> None:
    """What is not judged since no program logs is no lack of a device."""
    lacking = (
        *(CannotTell(rule, ("gpu.0", "gpu.1"), "temp", "not_supported") for rule in ("near_slowdown", "overheating")),
        CannotTell("gradient", (), "grad_norm", NOT_LOGGED, "the program logs no grad_norm"),
    )
    text = page([one._replace(findings=Findings((), (), lacking)) for one in run(20)])
    assert "<summary>Not judged: 3 rules</summary>" in text
    rows = Reading(text).rows
    assert ["near_slowdown, overheating", "gpu.0, gpu.1", "not supported"] in rows
    assert ["gradient", "", "the program logs no grad_norm"] in rows


def test_missing_values_are_one_row_for_each_reason() -> None:
    """All devices that lack the same, for the same reason, together; many metrics are counted and folded."""
    gone = {f"gpu.{number}.fanSpeed": Unavailable(Reason.NOT_SUPPORTED, "NVML_ERROR_NOT_SUPPORTED") for number in range(4)}
    gone |= {f"gpu.5.{name}": Unavailable(Reason.DEVICE_LOST, "it is gone") for name in "abcdefghij"}
    records = []
    for second in range(20):
        one = record(second, {f"gpu.{number}.gpu": second % 7 for number in range(5)}, gpus=6)
        records.append(one._replace(snapshot=Snapshot(one.snapshot.time_ns, "node-1", one.snapshot.metrics, one.snapshot.identities, gone)))
    text = page(records)
    assert "<summary>not supported: 1 metric of gpu.0 to gpu.3</summary>" in text
    assert "<summary>device lost: 10 metrics of gpu.5</summary>" in text
    rows = Reading(text).rows
    assert ["gpu.0 to gpu.3", "fanSpeed", "NVML_ERROR_NOT_SUPPORTED", "all the time"] in rows
    assert ["gpu.5", "10 metricsa, b, c, d, e, f, g, h, i, j", "it is gone", "all the time"] in rows


@pytest.mark.parametrize(("watts", "unit", "cells"), [((36_000, 7_200), "kWh", ["0.190", "0.038"]), ((100, 2.5), "J", ["1900", "48"])])
def test_energies_of_a_column_have_one_unit(watts: tuple[float, float], unit: str, cells: list[str]) -> None:
    """That of the largest one, in the heading."""
    values = {f"gpu.{number}.powerWatts": each for number, each in enumerate(watts)}
    reading = Reading(page([record(second, values, gpus=2) for second in range(20)]))
    (heads,) = [row for row in reading.rows if row[-2:] == [f"energy, {unit}", "samples"]]
    assert [row[heads.index("samples") - 1 - len(heads)] for row in reading.rows if row[:1] in (["gpu.0"], ["gpu.1"]) and "20" in row][
        :2
    ] == cells


def test_a_sparkline_joins_readings_and_breaks_at_gaps() -> None:
    """A dip of one reading hangs together with what is beside it."""
    records = [record(second, {"gpu.0.gpu": 10.0 if second == 5 else 90.0} if second != 8 else {}, gpus=1) for second in range(12)]
    (line, *_) = re.findall(r'<svg[^>]*class="spark".*?<path d="([^"]*)"', page(records))
    assert [len(part.split("L")) for part in line.split("M")[1:]] == [8, 3]


def test_findings_that_say_the_same_are_one() -> None:
    """With all devices that they are about; each is counted."""
    found = [Finding("hot", "warning", f"gpu.{key}", "above 80 °C", 83.0, 80.0, START * 10**9, None, "fans") for key in range(3)]
    text = page([one._replace(findings=Findings(tuple(found))) for one in run(20, 3)])
    assert sum("data-severity" in held for _, held in Reading(text).tags) == 1
    assert "gpu.0 to gpu.2: above 80 °C" in text and "3 findings: 3 warning." in text


@pytest.mark.parametrize(
    ("labels", "expected"), [({}, "train-7b"), ({"run_name": "7b, lr 3e-4"}, "7b, lr 3e-4")], ids=["by its file", "by its label"]
)
def test_the_title_is_the_runs_name(labels: dict[str, str], expected: str, tmp_path: Path) -> None:
    """The label ``run_name``, or the name of its file."""
    path = write(tmp_path / "train-7b.jsonl", [one._replace(labels={**one.labels, **labels}) for one in run(20, 1)])
    done = call("report", path, "--html", str(tmp_path / "run.html"))
    assert (done.returncode, done.stderr) == (0, "")
    text = (tmp_path / "run.html").read_text()
    assert f"<h1>{expected}</h1>" in text and f"<title>{expected}: accelmetrics report</title>" in text


def test_notes_stand_before_histories() -> None:
    """For what a device was throttled is read before small pictures."""
    heads = next(row for row in Reading(page(list(run(60, 2)))).rows if "throttled" in row)
    assert heads[:2] == ["device", "throttled"] and heads[2:6] == ["mean", "max", "p95", "over time"]
