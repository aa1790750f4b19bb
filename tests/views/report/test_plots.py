"""Pictures of a report: what is drawn, where it stands in SVG, files that are written whole, PNG."""

from __future__ import annotations

import re
import struct
import sys
from functools import partial
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest

from accelmetrics.monitor.rules import BUILT_IN
from accelmetrics.schemas.record import Record, Step
from accelmetrics.views.report import drawing
from accelmetrics.views.report.plots import (
    ABOUT,
    ALIGNED,
    LINES,
    Axis,
    Pictures,
    Plot,
    PlotLine,
    aligned,
    moment,
    pictures,
    shown_unit,
    time_ticks,
)
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
    ((begin, end, share, _),) = rows["gpu.1 heat"]
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
    assert (both[0].x[0], both[1].x[0], both[0].x[-1], both[1].x[-1]) == (0.0, -30.0, 99.0, 89.0)
    assert both[0].mean[50] == pytest.approx(400 * (0.5 + (1 + 0.598) / 4), abs=1)
    (axes,) = drawing.draw_plot(named(found, "power_watts")).axes
    assert [one.get_linestyle() for one in axes.lines if not str(one.get_label()).startswith("_")] == ["-", "--"]


def paced(count: int, interval: float, begin: float, label: str, gpus: int = 1, seconds: float = 0.5, watts: float = 100.0) -> list[Record]:
    """A recording with an interval of its own; a step takes so long, and ten of them are an epoch."""
    records = []
    for number in range(count):
        moment = begin + number * interval
        done = int((moment - begin) / seconds)
        steps = (Step(int((START + moment) * 1e9), done, {"loss": 5 - done / 100, "epoch": done // 10}),)
        values = {f"gpu.{gpu}.powerWatts": watts * (gpu + 1) + done for gpu in range(gpus)}
        records.append(record(moment, values, gpus=gpus, steps=steps, run_id=label))
    return records


APART = pytest.mark.parametrize(
    ("interval", "begin", "count"),
    [(1.0, 0.37, 60), (0.7, 0.13, 90), (1.3, 25.21, 60), (2.0, 1000.5, 30)],
    ids=["between", "quicker", "overlapping", "apart"],
)


@APART
def test_lines_of_recordings_that_never_coincide_are_whole(interval: float, begin: float, count: int) -> None:
    """Side by side and compared: each is drawn through all of its readings, in one piece."""
    first, second = paced(60, 1.0, 0.0, "a"), paced(count, interval, begin, "b")
    for found, offsets in ((drawn([*first, *second]), (START, START + begin)), (drawn(first, second), (0.0, 0.0))):
        both = named(found, "power_watts").lines
        for line, records, pace, offset in zip(both, (first, second), (1.0, interval), offsets, strict=True):
            assert list(line.mean) == [next(iter(one.snapshot.metrics.values())) for one in records]
            assert list(line.x) == pytest.approx([offset + pace * number for number in range(len(records))], abs=1 / 32)
        (axes,) = drawing.draw_plot(named(found, "power_watts")).axes
        assert [len(one.get_xdata()) for one in axes.lines if one.get_marker() == "None"] == [len(first), count]
        picture = plotted(found, "power_watts")
        whole = [points for color in (0, 1) for points, _ in lines(picture, color)]
        assert sorted(len(points) for points in whole if len(points) > 3) == sorted((60, count))  # those of 3 are the legend's


@APART
def test_bands_of_recordings_that_never_coincide_have_every_device(interval: float, begin: float, count: int) -> None:
    """Where both are read, least and largest are of all devices of both, at each point."""
    found = drawn([*paced(60, 1.0, 0.0, "a", gpus=4), *paced(count, interval, begin, "b", gpus=6)])
    (band,) = named(found, "power_watts").lines
    shared = (START + begin + 2 * interval, START + min(57.0, begin + (count - 3) * interval))
    inside = [(low, high) for at, low, high in zip(band.x, band.low, band.high, strict=True) if shared[0] <= at <= shared[1]]
    assert bool(inside) is (begin < 60)
    assert all(low is not None and high is not None and low < 230 and high >= 600 for low, high in inside)
    assert (None in band.mean) is (begin > 60)


@pytest.mark.parametrize("axis", ALIGNED)
def test_a_comparison_is_aligned_by_steps_or_epochs(axis: Axis) -> None:
    """The same step of a run that is twice as slow stands at the same place, whenever it was read."""
    found = aligned(drawn(paced(60, 1.0, 0.0, "a"), paced(90, 1.3, 500.21, "b", seconds=1.0)), axis)
    assert found.axis == axis
    for plot in (named(found, "power_watts"), *found.logged):
        for line in plot.lines:
            steps = [place if axis == "step" else 10 * place for place in line.x]
            values = [(value - 100) if plot.name == "power_watts" else 100 * (5 - value) for value in line.mean if value is not None]
            # An epoch goes from the last step of the one before to its own last one: up to two of its ten steps away.
            assert values == pytest.approx(steps, abs=0.1 if axis == "step" else 2.5)


def test_steps_that_began_again_are_drawn_where_they_are() -> None:
    """A program that went back to a checkpoint: the last reading at a step counts, and none stands in between."""
    records = [
        record(second, {"gpu.0.powerWatts": 100.0 + second}, gpus=1, steps=(Step(int((START + second) * 1e9), step, {"loss": step}),))
        for second, step in enumerate([*range(10), *range(5, 15)])
    ]
    (line,) = named(aligned(drawn(records), "step"), "power_watts").lines
    assert list(zip(line.x, line.mean, strict=True)) == [(step, 100.0 + step + 5 * (step >= 5)) for step in range(15)]


@pytest.mark.parametrize(("axis", "words"), [("step", "the program of B logged no step"), ("epoch", "of A and of B logged no epoch")])
def test_what_cannot_be_aligned_is_said(axis: str, words: str, tmp_path: Path) -> None:
    """Which run lacks it, and what can be done."""
    with_steps = [
        record(second, {"gpu.0.powerWatts": 100.0 + second}, gpus=1, steps=(Step(int((START + second) * 1e9), second, {"loss": 1}),))
        for second in range(5)
    ]
    without = [record(second, {"gpu.0.powerWatts": 100.0 + second}, gpus=1, run_id="b") for second in range(5)]
    a, b = write(tmp_path / "a.jsonl", with_steps), write(tmp_path / "b.jsonl", without)
    for arguments in (["--html", str(tmp_path / "c.html")], ["--plots", str(tmp_path / "plots")]):
        done = call("report", a, "--compare", b, "--align", axis, *arguments)
        assert done.returncode == 2 and words in one_line(done.stderr) and "--align time" in done.stderr
    assert call("report", a, "--align", axis).returncode == 2


def test_findings_are_marked_where_they_are_about_something() -> None:
    """Heat in the plot of the temperature alone, in a colour that no device has."""
    found = drawn(list(run(400, 2)))
    for plot in found.plots:
        picture = plotted(found, plot.name)
        bars = [path for path in picture.iter(f"{{{SPACE['svg']}}}path") if f"fill: {drawing.FOUND}" in path.get("style", "")]
        assert bool(bars) is (plot.name == "temperature_celsius"), plot.name
    assert drawing.FOUND not in drawing.PALETTE
    assert set(ABOUT) <= set(BUILT_IN)


def test_a_distribution_has_a_legend() -> None:
    """In a file of its own; steps that all took equally long have no histogram."""
    found = drawn(list(run(60, 2)))
    words = {"least to largest", "median to p99", "p95", "mean over time"}
    for spread in found.distributions:
        assert words <= texts(parsed(partial(drawing.draw_spread, spread)))
        assert not words & texts(parsed(partial(drawing.draw_spread, spread, page=True)))
    assert found.step_times and not drawn([*paced(20, 1.0, 0.0, "a")]).step_times


def test_memory_begins_at_zero() -> None:
    """However far from it the values are."""
    found = drawn([record(second, {"gpu.0.memoryAllocatedBytes": (60 + second % 2) * GIB}, gpus=1) for second in range(9)])
    (axes,) = drawing.draw_plot(named(found, "memory_used_bytes")).axes
    assert axes.get_ylim()[0] == 0


def test_logged_numbers_are_drawn_over_steps_and_time() -> None:
    """What is not finite is left out of the line."""
    found = drawn(list(run(50, 1)))
    by_step = {plot.title: plot for plot in aligned(found, "step").logged}
    assert list(by_step["Loss"].lines[0].x) == [2.0 * second for second in range(50)]
    assert [plot.axis for plot in found.logged] == ["time"] * len(found.logged)
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
    values = [1.0, None, 1.0, 2.0]
    line = PlotLine("gpu.0", 0, False, [5.0, 6.0, 7.0, 8.0], values, values, values)
    (axes,) = drawing.draw_plot(Plot("a", "A", "", "time", (line,))).axes
    assert [list(one.get_xdata()) for one in axes.lines if one.get_marker() == "o"] == [[5.0]]


def logging(*names: str) -> list[Record]:
    """A run that logs a number under each of these names."""
    return [
        record(second, {}, gpus=0, steps=(Step(int((START + second) * 1e9), second, {name: float(second) for name in names}),))
        for second in range(5)
    ]


@pytest.mark.parametrize(
    ("name", "heading"),
    [
        ("lr", "Learning rate"),
        ("step_seconds", "Step time, s"),
        ("train/loss", "Loss"),
        ("eval/loss", "Loss (eval)"),
        ("data_seconds", "Data, s"),
        ("my_number", "My number"),
        ("custom/score", "Custom/score"),
    ],
)
def test_a_logged_number_is_titled_in_words(name: str, heading: str) -> None:
    """With its unit where the name tells it."""
    found = drawn(logging(name))
    assert [plot.heading for plot in found.logged] == [heading]


def test_two_names_of_one_number_have_two_titles() -> None:
    """The second one has its name."""
    found = drawn(logging("loss", "train/loss"))
    assert [plot.title for plot in found.logged] == ["Loss", "Loss (train/loss)"]
