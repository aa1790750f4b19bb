"""Pictures of a report: what is drawn, where it stands in SVG, files that are written whole, PNG."""

from __future__ import annotations

import re
import struct
import sys
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest

from accelmetrics.schemas.record import Record
from accelmetrics.views.report import drawing
from accelmetrics.views.report.plots import LINES, Pictures, Plot, PlotLine, moment, pictures, shown_unit, time_ticks
from tests.cli.shell import call, one_line
from tests.cli.test_report import GIB, START, record, write
from tests.views.report.runs import run
from tests.views.report.test_making import logged, made

SPACE = {"svg": "http://www.w3.org/2000/svg"}


def drawn(records: list[Record], other: list[Record] | None = None) -> Pictures:
    """What is drawn of records, or of two runs."""
    return pictures(*(made(one) for one in (records, other) if one is not None))


def named(found: Pictures, name: str) -> Plot:
    (plot,) = [plot for plot in found.plots if plot.name == name]
    return plot


def parsed(draw: drawing.Draw) -> Element:
    return ElementTree.fromstring(drawing.render(draw, "svg"))


def plotted(found: Pictures, name: str) -> Element:
    """The plot of a metric over the time of all."""
    return parsed(lambda: drawing.draw_plot(named(found, name), found.marks, (found.begin, found.end)))


def lines(picture: Element, color: int = 0) -> list[tuple[list[tuple[float, float]], str]]:
    """The places of each line of a colour, in the picture's own units, and its style."""
    found = []
    for path in picture.iter(f"{{{SPACE['svg']}}}path"):
        style, drawn = path.get("style", ""), path.get("d", "")
        if style.startswith("fill: none") and f"stroke: {drawing.PALETTE[color]}" in style and drawn.count("L") > 0:
            found.append(([(float(x), float(y)) for x, y in re.findall(r"[ML] (-?[\d.]+) (-?[\d.]+)", drawn)], style))
    return found


def texts(picture: Element) -> set[str]:
    return {text.text or "" for text in picture.iter(f"{{{SPACE['svg']}}}text")}


def levels(picture: Element) -> list[tuple[float, float]]:
    """The numbers at the left axis: how high, and which."""
    found = []
    for number in range(1, 20):
        group = picture.find(f".//svg:g[@id='ytick_{number}']", SPACE)
        if group is not None:
            (use,) = group.findall(".//svg:path[@d]", SPACE)[:1]
            (text,) = group.findall(".//svg:text", SPACE)
            found.append((float(re.findall(r"-?[\d.]+", use.get("d", ""))[1]), float(text.text or "")))
    return found


def test_values_stand_where_the_axis_says() -> None:
    """The numbers at the axis and the points of the line give the values back."""
    values = [100.0, 400.0, 250.0, 180.0]
    found = drawn([record(10 * second, {"gpu.0.powerWatts": value}, gpus=1) for second, value in enumerate(values)])
    picture = plotted(found, "power_watts")
    (low_y, low), (high_y, high) = levels(picture)[0], levels(picture)[-1]
    ((points, _),) = lines(picture)
    read = [low + (y - low_y) / (high_y - low_y) * (high - low) for _, y in points]
    assert read == pytest.approx(values, abs=(high - low) / 500)
    across = [x for x, _ in points]
    assert across[1] - across[0] == pytest.approx(across[3] - across[2], abs=0.2)


def test_a_peak_of_one_reading_in_a_long_run_is_drawn() -> None:
    """However few points a line has."""
    records = [record(second, {"gpu.0.temp": 99 if second == 4321 else 50}, gpus=1) for second in range(6000)]
    found = drawn(records)
    (axes,) = drawing.draw_plot(named(found, "temperature_celsius")).axes
    (band,) = axes.collections
    assert band.get_paths()[0].vertices[:, 1].max() == 99
    assert len(axes.lines[0].get_xdata()) <= 1000


def test_no_line_crosses_a_gap() -> None:
    """It is broken, and the time in which nothing was read is shaded."""
    found = drawn([record(second, {"gpu.0.gpu": 50 + second % 2}, gpus=1) for second in (*range(20), *range(200, 220))])
    plot = named(found, "utilization_percent")
    assert None in plot.lines[0].mean
    assert [mark.label for mark in found.marks if mark.kind == "gap"] == ["nothing was read"]
    picture = plotted(found, "utilization_percent")
    (path,) = [
        path.get("d", "")
        for path in picture.iter(f"{{{SPACE['svg']}}}path")
        if "fill: none" in path.get("style", "") and f"stroke: {drawing.PALETTE[0]}" in path.get("style", "")
    ]
    assert path.count("M") == 2
    assert any("fill: #d3d8de" in path.get("style", "") for path in picture.iter(f"{{{SPACE['svg']}}}path"))


def test_many_devices_are_a_band() -> None:
    """From the least to the largest of them, with their median."""
    values = {f"gpu.{number}.powerWatts": 100.0 + 10 * number for number in range(LINES + 1)}
    found = drawn([record(second, {**values, "gpu.0.powerWatts": 100.0 + second}, gpus=LINES + 1) for second in range(5)])
    (line,) = named(found, "power_watts").lines
    assert line.label == "median of 9"
    assert (list(line.low), set(line.high), set(line.mean)) == ([100.0, 101.0, 102.0, 103.0, 104.0], {180.0}, {140.0})


def test_epochs_findings_and_throttling_are_marked() -> None:
    """In time, with their names."""
    found = drawn(list(run(400, 2)))
    epochs = [(mark.label, round(mark.begin - START)) for mark in found.marks if mark.kind == "epoch"]
    assert [label for label, _ in epochs] == [f"epoch {number}" for number in range(4)]
    (finding,) = [mark for mark in found.marks if mark.kind == "finding"]
    assert (finding.label, finding.begin - START, finding.end - START, finding.severity) == ("hot gpu.1", 200.0, 300.0, "warning")
    rows = {label: spans for label, _, spans in found.strip}
    ((begin, end, share),) = rows["gpu.1 heat"]
    assert (begin - START, round(end - START), share) == (200.0, 399, 1.0)
    assert {"epoch 0", "epoch 3", "Power, W", "UTC"} <= {text.strip() for text in texts(plotted(found, "power_watts"))}
    strip = parsed(lambda: drawing.draw_strip(found.strip, found.axis, (found.begin, found.end)))
    assert {"gpu.1 heat", "findings"} <= texts(strip)


def test_what_never_changed_is_told_in_words() -> None:
    """A plot of it would say no more."""
    found = drawn([record(second, {"gpu.0.powerWatts": 100.0 + second, "gpu.0.smClock": 1980}, gpus=1) for second in range(9)])
    assert [plot.name for plot in found.plots] == ["power_watts"]
    assert found.constant == ("Clock 1980 MHz",)


def test_bytes_are_shown_in_units_that_fit() -> None:
    """Binary ones for memory."""
    found = drawn([record(second, {"gpu.0.memoryAllocatedBytes": (40 + second) * GIB}, gpus=1) for second in range(3)])
    plot = named(found, "memory_used_bytes")
    assert (plot.unit, list(plot.lines[0].mean)) == ("GiB", [40.0, 41.0, 42.0])


def test_two_runs_share_their_axes() -> None:
    """Time is counted from the first step of each; the second is dashed."""
    slow = [one._replace(steps=() if number < 30 else one.steps) for number, one in enumerate(run(120, 1, power=300.0))]
    found = drawn(list(run(100, 1)), slow)
    assert found.axis == "seconds" and (found.begin, found.end) == (0.0 - 30, 99.0)
    both = named(found, "power_watts").lines
    assert [(line.label, line.dashed, line.color) for line in both] == [("A gpu.0", False, 0), ("B gpu.0", True, 0)]
    assert list(both[0].x) == list(both[1].x)
    at = {place: (one, other) for place, one, other in zip(both[0].x, both[0].mean, both[1].mean, strict=True)}
    assert at[-30.0][0] is None and at[-30.0][1] is not None
    assert at[50.0][0] == pytest.approx(400 * (0.5 + (1 + 0.598) / 4), abs=1)
    (axes,) = drawing.draw_plot(named(found, "power_watts")).axes
    assert [one.get_linestyle() for one in axes.lines if not str(one.get_label()).startswith("_")] == ["-", "--"]


def test_logged_numbers_are_drawn_over_steps_and_time() -> None:
    """What is not finite is left out of the line."""
    found = drawn(list(run(50, 1)))
    by_step = {plot.title: plot for plot in found.by_step}
    assert list(by_step["loss"].lines[0].x) == [2.0 * second for second in range(50)]
    assert [plot.axis for plot in found.by_time] == ["time"] * len(found.by_time)
    assert sum(sum(counts) for *_, counts in found.step_times) == 50


def test_the_same_records_give_the_same_bytes() -> None:
    """So that pictures in a repository change with what they show alone."""

    def pictured() -> list[bytes]:
        return [drawing.render(draw, kind) for _, _, draw in drawing.pictures(drawn(list(run(300, 3)))) for kind in ("svg", "png")]

    assert pictured() == pictured()


def test_names_of_others_are_text_and_no_path(tmp_path: Path) -> None:
    """In titles, and in the names of files."""
    hostile = "../../</svg><script>$alert(1)</script>\x00"
    records = [
        one._replace(steps=tuple(step._replace(values={hostile: float(step.step or 0)}) for step in one.steps)) for one in run(20, 1)
    ]
    done = call("report", write(tmp_path / "run.jsonl", records), "--plots", str(tmp_path / "plots"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    files = sorted(path.name for path in (tmp_path / "plots").iterdir())
    assert "logged_svg__script__alert_1___script.svg" in files and all(name.endswith(".svg") for name in files)
    picture = ElementTree.fromstring((tmp_path / "plots" / "logged_svg__script__alert_1___script.svg").read_bytes())
    assert not picture.findall(".//svg:script", SPACE)
    assert any((text.text or "").startswith("../../</svg><script>") for text in picture.iter(f"{{{SPACE['svg']}}}text"))


def test_markdown_has_the_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the path that was given, after the tables."""
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "run.jsonl", list(run(20, 1)))
    done = call("report", path, "--format", "markdown", "--plots", "some plots")
    assert done.returncode == 0, done.stderr
    linked = re.findall(r"!\[(.+)\]\(<(.+)>\)", done.stdout)
    assert ("Power", "some plots/power_watts.svg") in linked
    assert all((tmp_path / name).is_file() for _, name in linked)
    assert done.stdout.index("| Metric |") < done.stdout.index("![")


def test_png_stands_beside_the_svg(tmp_path: Path) -> None:
    """Which Markdown then leaves alone."""
    path = write(tmp_path / "run.jsonl", list(run(20, 1)))
    done = call("report", path, "--plots", str(tmp_path / "plots"), "--png", "--format", "markdown")
    assert done.returncode == 0, done.stderr
    content = (tmp_path / "plots" / "machine_cpu.png").read_bytes()
    assert content.startswith(b"\x89PNG") and struct.unpack(">II", content[16:24]) == (1440, 480)
    assert "power_watts.png" in done.stdout and ".svg" not in done.stdout
    assert (tmp_path / "plots" / "power_watts.svg").exists()


def test_a_missing_package_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it, before a recording is read."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = call("report", str(tmp_path / "absent.jsonl"), "--plots", str(tmp_path / "plots"))
    assert done.returncode == 1 and one_line(done.stderr).endswith("pip install 'accelmetrics[plots]'")
    assert call("report", str(tmp_path / "run.jsonl"), "--png").returncode == 2


@pytest.mark.parametrize("processes", [LINES, LINES + 1])
def test_step_times_of_many_processes_are_one_histogram(processes: int) -> None:
    """A histogram each up to eight; beyond that the sum, which has every step."""
    report = made([one for rank in range(processes) for one in logged(100, rank)])
    found = pictures(report).step_times
    assert len(found) == (1 if processes > LINES else processes)
    assert sum(sum(counts) for *_, counts in found) == 100 * processes
    name, title, edges, counts = found[0]
    assert (edges[0], edges[-1]) == (1.0, 1.3)
    if processes > LINES:
        assert (name, title) == ("step_time", "Step time, all processes, 9 of them")
        # Four durations, each a quarter of the steps.
        assert [count for count in counts if count] == [25 * processes] * 4


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """With the system's reason."""
    (tmp_path / "taken").write_text("")
    done = call("report", write(tmp_path / "run.jsonl", list(run(5, 1))), "--plots", str(tmp_path / "taken"))
    assert done.returncode == 1 and f"cannot write {tmp_path / 'taken'}" in done.stderr


def test_moments_are_whole_ones() -> None:
    """Minutes, hours, days, by how long it is."""
    day = time_ticks(START, START + 86400)
    assert [moment(at, day) for at in day] == ["01-01", "06:00", "12:00", "18:00", "01-02"]
    assert [moment(at, [0, 5]) for at in time_ticks(START + 1, START + 12)] == [f"00:00:{second:02}" for second in range(2, 13, 2)]
    assert len(time_ticks(START, START + 90 * 86400)) <= 8


def test_units_are_those_that_people_read() -> None:
    """Whatever the catalogue calls them."""
    assert shown_unit("By/s", 3e9) == ("GB/s", 1e9)
    assert shown_unit("Cel", 3e9) == ("°C", 1.0)


def test_a_single_reading_is_a_dot() -> None:
    """A line of no length would not be seen."""
    line = PlotLine("gpu.0", 0, False, [5.0, 6.0, 7.0, 8.0], *[[1.0, None, 1.0, 2.0]] * 3)
    (axes,) = drawing.draw_plot(Plot("a", "A", "", "time", (line,))).axes
    assert [list(one.get_xdata()) for one in axes.lines if one.get_marker() == "o"] == [[5.0]]
