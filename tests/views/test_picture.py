"""The picture of a node: it fits every terminal, and says what must be seen."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from math import nan

import pytest
from hypothesis import given, settings, strategies as st
from rich.cells import cell_len

from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.identity import BackendStatus, DeviceProcess
from accelmetrics.schemas.record import CannotTell, Finding, Findings, Step
from accelmetrics.schemas.text import cells
from accelmetrics.views.device_view import DeviceView
from accelmetrics.views.node_view import NodeView, node_view
from accelmetrics.views.page.documents import state_document
from accelmetrics.views.terminal.choices import HIDDEN, USUAL_CHOICES, Choices, InputLine
from accelmetrics.views.terminal.graphs import CLOCK_STEPS, Series, line_graph, time_axis
from accelmetrics.views.terminal.picture import Picture, picture
from accelmetrics.views.terminal.style import CODES, Colours, ScreenStyle, Theme, shortened
from accelmetrics.views.terminal.tables import COLUMNS, process_lines
from accelmetrics.views.trails import SPANS, TrailPoint, Trails, graph_metrics
from accelmetrics.visibility.processes import ProcessDetails, ProcessInfo, ProcessListing
from tests.records import record
from tests.views.nodes import GIB, HEALTHY, SECOND, Node, plain

COLOURLESS = ScreenStyle(colours="none", braille=False)
SIZES = [(20, 5), (24, 8), (40, 10), (60, 15), (79, 23), (80, 24), (100, 30), (120, 40), (181, 45), (200, 60), (250, 80)]
TINY = [(20, 1), (20, 2), (20, 3), (1, 1), (5, 4)]


class Watched:
    """A node with its history.

    Args:
        node: The node.
        seconds: Readings that were taken, one a second.
        processes: Whether programs are on its devices.
        change: Called before the last twelve readings.
    """

    def __init__(self, node: Node, seconds: int = 30, processes: bool = True, change: Callable[[Node], None] | None = None) -> None:
        keys = [slot.key for slot in node.slots]
        infos = []
        for number, key in enumerate(keys if processes else []):
            node.processes[key] = (DeviceProcess(48120 + number // 2, "compute", 44 * GIB, 90.0),)
            command = f"/usr/bin/python train.py --epochs {4321 + number} --name 実験"
            infos.append(ProcessInfo(key, 48120 + number, user=f"ann{number}", command=command, started="2026-09-21T13:00:00Z"))
        self.listing = ProcessListing("", "", tuple(infos), (), (), {})
        self.trails = Trails()
        self.view: NodeView = node_view(node.record(), processes=self.listing)
        for second in range(seconds):
            if second == max(1, seconds - 12) and change is not None:
                change(node)
            for number, key in enumerate(keys):
                if "gpu" in node.metrics[key]:
                    node.set(key, {"gpu": (second * 7 + number * 13) % 101, "powerWatts": 300.0 + second * 10})
            node.wait(1)
            self.view = node_view(node.record(), processes=self.listing, before=self.view)
            self.trails.add(self.view)

    def draw(self, choices: Choices = USUAL_CHOICES, size: tuple[int, int] = (80, 24), style: ScreenStyle = COLOURLESS) -> Picture:
        """Draw it."""
        return picture(self.view, self.trails, choices, os.terminal_size(size), style)

    def text(self, choices: Choices = USUAL_CHOICES, size: tuple[int, int] = (80, 24), style: ScreenStyle = COLOURLESS) -> str:
        """Return what is drawn, without styles."""
        return "\n".join(plain(self.draw(choices, size, style)))


def lose_some(node: Node) -> None:
    node.silence("gpu.3", Reason.DEVICE_LOST, "NVML_ERROR_GPU_IS_LOST")
    node.silence("gpu.5", Reason.TIMED_OUT, "a call into the driver has not returned")
    node.set("gpu.2", {"throttle.hwThermalSlowdown": 1, "temp": 88})
    node.find("throttled", "warning", "gpu.2", "clocks held down for 72 % of 300 s", "Check fans.")
    node.find("lost_device", "critical", "gpu.3", "it gives nothing", "Drain the node.")


def lose_with_processes(node: Node) -> None:
    for key in ("gpu.2", "gpu.3", "gpu.5"):
        node.silence(key, Reason.DEVICE_LOST, "NVML_ERROR_GPU_IS_LOST")
        node.unlisted[key] = Unavailable(Reason.DEVICE_LOST)
        del node.processes[key]


def partitioned() -> Node:
    node = Node(2)
    node.miss("gpu.0", ("gpu",), Reason.NOT_SUPPORTED)
    for _ in range(7):
        node.set(
            node.add(parent="gpu.0", name="NVIDIA H100 MIG 1g.10gb"), {"memoryAllocatedBytes": GIB, "memoryTotalBytes": 10 * GIB}, only=True
        )
    return node


def strange() -> Node:
    node = Node(0, hostname="名前の長いホスト" * 4)
    for name in ("加速器" * 20, "evil\x1b[2J\x1b]0;x\x07", "a\u0301\u0301e\u0301", "", "👩 GPU " * 9, "x" * 300):
        node.add(name=name)
    node.find("hot", "warning", "gpu.0", "温度 88 °C \x1b[31m" * 20)
    node.sources["amd"] = BackendStatus("amd", "failed", "amdgpu\x1b[0m is not loaded, ドライバ" * 5, devices=2)
    return node


def silent_driver() -> Node:
    node = Node(0)
    node.sources = {"nvidia": BackendStatus("nvidia", "timed_out", "the driver is still being opened", devices=8)}
    return node


def bare() -> Node:
    node = Node(0)
    node.host |= {"disk.vda.readBps": 1024.0, "disk.vdb.readBps": 2048.0, "disk.vda.writeBps": 10.0}
    node.host |= {"network.sentBps": 100.0, "network.recvBps": 1e6}
    why = {"nvidia": "libnvidia-ml.so.1 is not installed", "amd": "no display or accelerator device of AMD (0x1002) on the PCI bus"}
    node.sources = {name: BackendStatus(name, "absent", detail) for name, detail in why.items()}
    return node


def mixed() -> Node:
    node = Node(2)
    node.set(node.add("tpu", "google", "TPU v5e"), {"dutyCycle": 50.0, "hbmMemoryUsage": 25.0}, only=True)
    node.set(node.add("trn", "aws", "Trainium 2"), {"neuroncore_utilization": 40.0}, only=True)
    node.silence(node.add("npu", "huawei", "Ascend 910B"), Reason.NOT_IN_USE)
    node.unlisted["tpu.0"] = Unavailable(Reason.NO_PERMISSION, "only root may list them")
    return node


def trained(node: Node) -> Watched:
    """A node on which two programs log a step a second, with a loss that is not finite once; and what rules find of them."""
    watched = Watched(node)
    end = watched.view.time_ns
    for number in range(20):
        of = {
            "loss": nan if number == 12 else 2.5 - number / 10,
            "lr": 3e-4,
            "grad_norm": 1.0,
            "tokens_per_joule": 9.5,
            "tokens_per_second": 1e5,
        }
        steps = [
            Step(end - (20 - number) * SECOND, number, {**of, "step_seconds": 1.0}, 0, f"{name} of node7") for name in ("job 実験", "pid 7")
        ]
        watched.trails.add_steps(steps)
    of_run = Finding("non_finite", "critical", "", "loss is nan at step 12", 1.0, 0.0, end - 8 * SECOND, None, "")
    watched.view = replace(watched.view, findings=Findings((of_run,)))
    return watched


NODES: dict[str, Callable[[], Watched]] = {
    "none": lambda: Watched(Node(0), 3),
    "bare": lambda: Watched(bare()),
    "one": lambda: Watched(Node(1)),
    "eight": lambda: Watched(Node(8)),
    "eight-lost": lambda: Watched(Node(8), change=lose_some),
    "sixty-four": lambda: Watched(Node(64), 10),
    "sixty-four-lost": lambda: Watched(Node(64), 10, change=lose_some),
    "silent": lambda: Watched(silent_driver(), 3),
    "partitions": lambda: Watched(partitioned()),
    "strange": lambda: Watched(strange(), 6),
    "mixed": lambda: Watched(mixed(), processes=False),
    "trained": lambda: trained(Node(8)),
    "trained-alone": lambda: trained(Node(1)),
    "trained-by-its-processors": lambda: trained(Node(0)),
}
CHOICES = {
    "usual": USUAL_CHOICES,
    "last": Choices(device="gpu.63", pane="devices"),
    "processes": Choices(pane="processes", process=48123, process_order="mem"),
    "map": Choices(form="map", graphs="band"),
    "lines": Choices(device="gpu.1", graphs="lines", metric="memory_used_bytes"),
    "list": Choices(form="list", device_order="temp", device_top=99),
    "details": Choices(overlay="details", device="gpu.0", overlay_top=7),
    "help": Choices(overlay="help", signals=True),
    "findings": Choices(overlay="findings"),
    "summary": Choices(overlay="summary", summary=("gpu.0  mean 93 %  " * 20, "", "実験 " * 60), overlay_top=1),
    "dialog": Choices(dialog=("signal", "SIGTERM to 48120", "python " * 50, "y sends it"), message="実験" * 50),
    "process": Choices(
        overlay="process",
        pane="processes",
        process=48121,
        unfolded=True,
        details=ProcessDetails(
            48121,
            48121,
            ((0, ProcessInfo("", 1, user="root", command="init")), (1, ProcessInfo("", 48121, command="実験 " * 90))),
            ("PATH=/usr/bin:" + "/x" * 200, "名=\x1b[31m"),
        ),
        signals=True,
    ),
    "columns": Choices(menu="columns", pane="processes", process_hidden=frozenset({"USER", "TIME"}), device_hidden=frozenset({"MEM"})),
    "ended": Choices(overlay="process", process=1),
    "order": Choices(menu="order", pane="processes", process_left=40, tagged=frozenset({48121})),
    "typing": Choices(input=InputLine("filter", "user=ann " * 30, 200, "there is no such field"), device_filter="util>50"),
    "other": Choices(training="pid 7 of node7", scale="5 min"),
    "empty": Choices(training=HIDDEN, device_filter="nothing-like-this", process_filter="nor-this"),
}


@pytest.mark.parametrize("name", NODES)
def test_every_picture_fits_its_terminal(name: str) -> None:
    watched = NODES[name]()
    for choices in CHOICES.values():
        for number, size in enumerate((*SIZES, *TINY)):
            style = (COLOURLESS, ScreenStyle(ascii=True), ScreenStyle("16"))[number % 3]
            drawn = watched.draw(choices, size, style)
            lines = plain(drawn)
            assert len(lines) == size[1]
            assert {cells(line) for line in lines} == {size[0]}, (choices, size, lines)
            assert all(line.isprintable() for line in lines)
            row, column = drawn.place
            assert 0 <= row < size[1]
            assert 0 <= column < size[0]
            if style.ascii:
                assert all(line.isascii() for line in lines)


def test_a_reading_of_a_sampler_can_be_drawn() -> None:
    view, trails = node_view(record()), Trails()
    trails.add(view)
    text = "\n".join(plain(picture(view, trails, size=os.terminal_size((120, 40)), style=COLOURLESS)))
    assert re.search(r"^> gpu\.0 .* 86% .*1\.0/80\.0 .* 300/700", text, re.MULTILINE)
    assert re.search(r"^  gpu\.1 .* 0% .*70/700", text, re.MULTILINE)


@settings(max_examples=25, deadline=None)
@given(
    values=st.lists(
        st.dictionaries(st.sampled_from([*HEALTHY, "lastXid", "nvlink.0.state"]), st.floats(allow_nan=False, allow_infinity=False)),
        max_size=9,
    ),
    names=st.lists(st.text(max_size=40), min_size=9, max_size=9),
    reason=st.sampled_from([*map(str, Reason), "new\x1breason"]),
    size=st.tuples(st.integers(20, 250), st.integers(5, 80)),
    style=st.sampled_from([COLOURLESS, ScreenStyle(), ScreenStyle(ascii=True)]),
    choices=st.sampled_from(list(CHOICES.values())),
)
def test_no_value_and_no_name_breaks_a_picture(
    values: list[dict[str, float]], names: list[str], reason: str, size: tuple[int, int], style: ScreenStyle, choices: Choices
) -> None:
    node = Node(0)
    for found, name in zip(values, names, strict=False):
        key = node.add(name=name)
        node.set(key, found, only=True)
        node.miss(key, tuple(HEALTHY.keys() - found.keys()), reason, name)
    watched = Watched(node, 4)
    lines = plain(watched.draw(choices, size, style))
    assert len(lines) == size[1]
    assert {cells(line) for line in lines} == {size[0]}
    assert all(line.isprintable() for line in lines)


def test_widths_are_those_that_a_terminal_has() -> None:
    for line in plain(Watched(Node(8)).draw(size=(120, 40))):
        assert cell_len(line) == 120


@pytest.mark.parametrize(("text", "columns"), [("gpu", 3), ("実験", 4), ("e\u0301", 1), ("❤\ufe0f", 1), ("█▁x", 3)], ids=ascii)
def test_marks_over_a_letter_take_no_column(text: str, columns: int) -> None:
    assert cells(text) == columns


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("form", ["auto", "list", "map"])
def test_the_chosen_device_is_always_seen(size: tuple[int, int], form: str) -> None:
    watched = Watched(Node(64), 3)
    for key in ("gpu.0", "gpu.31", "gpu.63"):
        drawn = watched.draw(Choices(device=key, form=form), size)  # type: ignore[arg-type]
        row, column = drawn.place
        device = watched.view.device(key)
        assert device is not None
        here = plain(drawn)[row][column:]
        if drawn.across == 1:
            assert here.startswith(">")
            assert key in here.split()[0] + here.split()[1]
        else:
            assert here.split()[0] == f"{device.values['utilization']:.0f}"
        assert drawn.choices.device == key


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_the_chosen_process_is_seen_where_processes_are(size: tuple[int, int]) -> None:
    watched = Watched(Node(64), 3)
    for pid in (48120, 48135, 48151):
        drawn = watched.draw(Choices(pane="processes", process=pid), size)
        if any("processes" in line for line in plain(drawn)) and drawn.page > 1:
            assert str(pid) in plain(drawn)[drawn.place[0]]


def test_columns_that_are_left_out_leave_room_for_others() -> None:
    watched = NODES["eight"]()
    shown = watched.text(size=(120, 40))
    left_out = Choices(menu="columns", device_hidden=frozenset({"MEM", "TEMP"}), process_hidden=frozenset({"USER", "TIME"}))
    fewer = watched.text(left_out, (120, 40))
    for pattern in (r" MEM +USED/GIB", r" TEMP ", r"PID +USER ", r" TIME "):
        assert re.search(pattern, shown), pattern
        assert not re.search(pattern, fewer), pattern
    assert "columns: n NAME m mem u USED p POWER t temp " in fewer


def test_the_processes_are_moved_sideways_and_their_numbers_stay() -> None:
    watched = NODES["eight"]()
    for size in SIZES[3:]:
        (row,) = [line for line in plain(watched.draw(Choices(pane="processes", process_left=999), size)) if "48120" in line]
        assert re.match(r"> +48120  ", row)
        assert row.rstrip().endswith("--name 実験")
        drawn = watched.draw(Choices(pane="processes", process_left=8), size)
        assert {cells(line) for line in plain(drawn)} == {size[0]}


def test_what_can_be_clicked_stands_where_it_is_said_to() -> None:
    for name in ("eight", "sixty-four", "mixed"):
        watched = NODES[name]()
        for size in SIZES[3:]:
            drawn = watched.draw(size=size)
            lines = plain(drawn)
            assert {spot.name for spot in drawn.spots} >= ({"gpu.0", "gpu.1"} if size[1] > 10 else {"gpu.0"})
            for spot in drawn.spots:
                if drawn.across == 1 and spot.pane == "devices" and spot.name:
                    assert lines[spot.line][spot.left :].startswith((f"> {spot.name}", f"  {spot.name}", f" -{spot.name}"))
                elif spot.pane == "processes" and spot.name:
                    assert str(spot.name) in lines[spot.line]
                elif spot.order == "mem":
                    assert lines[spot.line][spot.left : spot.right].strip() in ("MEM", "MEM/GIB")


def test_an_opened_process_is_told_whole_with_its_use_over_time_and_its_tree() -> None:
    watched = NODES["eight"]()
    text = watched.text(CHOICES["process"], (120, 50))
    for words in (
        "process 48121  python",
        "ann1",
        "gpu.2, gpu.3",
        "88.0 GiB",
        "--epochs 4322 --name 実験",
        "gpu.2 +44.0 GiB, 90 %",
        "runs for +1.2 h",
    ):
        assert re.search(words, text), words
    for title in (
        "GPU 1 min .* now 90 %  max 90 %",
        "GPU memory 1 min .* now 88.0 GiB",
        "CPU 1 min .* nothing read yet",
        "host memory 1 min",
    ):
        assert re.search(title, text), title
    assert re.search(r"^  1  root  init", text, re.MULTILINE)
    assert re.search(r"^    48121  \?  実験 実験", text, re.MULTILINE)
    assert "PATH=/usr/bin:/x/x" in text
    assert "the process has ended, or no longer uses a device" in watched.text(CHOICES["ended"])


def test_the_processes_of_a_lost_device_stay_as_they_were_seen_last() -> None:
    watched = Watched(Node(8), change=lose_with_processes)
    rows = {row.pid: row for row in watched.view.processes}
    assert [rows[48120 + number].seen_ns is None for number in range(4)] == [True, False, True, True]
    lines = plain(watched.draw(Choices(pane="processes"), (120, 40)))
    assert any(re.search(r"48121 .* 2-3 .*90\? +88\.0\? .* last seen 12 s ago: /usr/bin/python", line) for line in lines)
    assert any(re.search(r"48122 .* 4-5 .*90 +44\.0 .* /usr/bin/python", line) for line in lines)  # one of its devices is there
    opened = watched.text(Choices(overlay="process", process=48122), (120, 40))
    assert "gpu.5: last seen 12 s ago, before the device stopped answering" in opened


def legible(line: str, allowed: set[str]) -> list[str]:
    """Return the numbers of a line that are none of those allowed."""
    found = re.findall(r"\d[\d.,/]*", line)
    return [number for number in found if number.rstrip(".,") not in allowed]


@pytest.mark.parametrize("name", ["eight", "eight-lost", "partitions"])
def test_no_number_is_cut_in_half(name: str) -> None:
    watched = NODES[name]()
    rows: dict[str, DeviceView] = {device.label: device for device in watched.view.devices}
    for size in SIZES:
        for line in plain(watched.draw(size=size)):
            label = next(iter(re.findall(r"^[> ][!X -](gpu[\d.]+) ", line)), "")
            if label in rows and "│" not in line:
                device = rows[label]
                words = [*(column.text(device) for column in COLUMNS), *device.notes, device.label, device.name]
                allowed = {number.rstrip(".,") for word in words for number in re.findall(r"\d[\d.,/]*", word)}
                assert not legible(line, allowed), line


def test_a_text_is_never_shortened_within_a_number() -> None:
    assert shortened("above 1234 W", 9) == "above…"
    assert shortened("used 45.25 GiB", 9) == "used…"
    assert shortened("word", 3) == "wo…"
    assert shortened("a", 0) == ""


def test_a_lost_device_says_so_in_its_row_and_what_to_do_in_its_details() -> None:
    watched = NODES["eight-lost"]()
    (row,) = [line for line in plain(watched.draw()) if line.startswith(" Xgpu.3")]
    assert "lost" in row
    assert "80.0?" in row  # what it gave last
    details = watched.text(Choices(overlay="details", device="gpu.3"), (100, 50))
    assert "NVML_ERROR_GPU_IS_LOST" in details
    assert "what to do" in details
    assert "dmesg" in details
    assert "Drain the node." in details


def test_a_call_that_hangs_is_told_in_the_row() -> None:
    (row,) = [line for line in plain(NODES["eight-lost"]().draw()) if line.startswith(" Xgpu.5")]
    assert "timed out 12 s" in row


def test_the_first_line_counts_what_is_wrong() -> None:
    watched = NODES["eight-lost"]()
    first = plain(watched.draw(size=(120, 24)))[0]
    for words in ("node7", "8 gpu", "X 1 lost", "X 1 no answer", "! 1 hot", "X 1 critical, 1 warning", "cpu 12 %", "3540/4200 W"):
        assert words in first
    high = plain(watched.draw(size=(120, 40)))
    assert "cpu 12 %" not in high[0]
    assert re.match(r"host  cpu 12 %  mem 40 %", high[1])


def test_a_source_that_does_not_answer_has_a_row_and_details() -> None:
    watched = NODES["silent"]()
    text = watched.text(size=(120, 40))
    assert re.search(r"^>Xnvidia\s+timed out: the driver is still being opened", text, re.MULTILINE)
    assert "1 no answer" in text
    drawn = watched.draw()
    assert drawn.devices == ("nvidia",)
    assert "what to do" in watched.text(Choices(overlay="details", device="nvidia"))


def test_a_machine_without_devices_shows_its_host_and_what_was_looked_for() -> None:
    watched = NODES["bare"]()
    for size, graphs in ((80, 24), 6), ((120, 40), 6), ((200, 60), 6), ((40, 10), 1):
        text = watched.text(size=size)
        assert "no accelerator was found" in text
        assert re.search(r"^  nvidia +libnvidia-ml", text, re.MULTILINE)
        titles = re.findall(r"── (CPU|memory|disk read|disk written|network received|network sent)\b", text)
        assert len(titles) >= graphs, text
    wide = watched.text(size=(120, 40))
    assert re.search(r"CPU 1 min .* now 12 %  max 12 %", wide)
    assert re.search(r"disk read 1 min .* now 3.0 KiB/s", wide)  # of two disks
    assert "accelmetrics doctor" in wide
    whole = watched.text(Choices(overlay="details"), (80, 24))
    assert re.search(r"^  amd +no display or accelerator device of AMD", whole, re.MULTILINE)


def test_why_processes_are_not_known_is_told_once_for_all_devices() -> None:
    """In the list of `watch` and on the page."""
    watched = Watched(Node(4), 3, processes=False)
    text = watched.text()
    assert text.count("its source does not list processes") == 1
    assert "gpu.0 to gpu.3: its source does not list processes" in text
    state = state_document(watched.view, 1)
    assert state["unlisted_words"] == ["gpu.0 to gpu.3: its source does not list processes"]


def test_before_the_first_reading_it_says_so() -> None:
    drawn = picture(None, Trails(), size=os.terminal_size((80, 24)), style=COLOURLESS)
    assert plain(drawn)[0].startswith("reading")
    assert "q quit" in plain(drawn)[-1]


def test_what_is_missing_is_a_word_and_never_0() -> None:
    watched = NODES["mixed"]()
    text = watched.text(size=(120, 40))
    rows = {line[2:8].strip(): line for line in text.splitlines() if line[2:5] in ("gpu", "tpu", "trn", "npu")}
    assert "unused" in rows["npu.0"]
    assert rows["npu.0"][1] == "-"
    assert " 0%" not in rows["npu.0"]
    assert rows["tpu.0"].split().count("-") >= 2  # no power, no temperature


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)], ids=str)
def test_one_device_has_graphs_beside_each_other(size: tuple[int, int]) -> None:
    text = NODES["one"]().text(size=size)
    titles = re.findall(r"── (power|util|memory|temp|clock) gpu\.0, 1 min", text)
    assert len(titles) >= {80: 4, 120: 4, 200: 5}[size[0]]
    assert ("what to do" in text or "no problems" in text) == (size[0] == 200)


@pytest.mark.parametrize(("size", "graphs", "columns"), [((80, 24), 1, 6), ((120, 40), 2, 8), ((200, 60), 3, 11)], ids=str)
def test_eight_devices_have_rows_graphs_and_processes(size: tuple[int, int], graphs: int, columns: int) -> None:
    lines = plain(NODES["eight"]().draw(size=size))
    text = "\n".join(lines)
    assert sum(bool(re.match(r"[> ][!X -]gpu\.\d ", line)) for line in lines) == 8
    assert len(re.findall(r"── (?:power|util|memory|temp|clock) gpu", text)) >= graphs
    assert len(next(line for line in lines if "DEV" in line).split()) >= columns
    assert sum(bool(re.match(r"[> ] +4812\d ", line)) for line in lines) == 4
    assert all(line.strip() for line in lines[: size[1] * 2 // 3])  # it fills the terminal


def test_sixty_four_devices_are_a_map_with_the_worst_beside_it() -> None:
    watched = NODES["sixty-four-lost"]()
    drawn = watched.draw()
    text = "\n".join(plain(drawn))
    assert drawn.across == 8
    assert "X gpu.3" in text
    assert "! gpu.2" in text
    assert "of 64 devices: least, median, greatest" in text
    wide = watched.draw(size=(200, 60))
    assert wide.across == 1
    assert all(f"gpu.{number} " in "\n".join(plain(wide)) for number in range(64))


def test_a_history_shows_where_nothing_was_read() -> None:
    text = NODES["eight-lost"]().text(Choices(device="gpu.3"), (120, 40))
    row = next(line for line in text.splitlines() if "Xgpu.3" in line)
    assert re.search(r"[▁-█]x", row)
    assert "xxx" in text  # in the graph


def test_the_graph_shows_the_chosen_metric_over_the_chosen_time() -> None:
    text = NODES["eight"]().text(Choices(device="gpu.4", metric="temperature_celsius", scale="5 min"))
    assert "temp gpu.4, 5 min" in text
    assert "max 71 °C" in text
    assert "nothing read yet" in NODES["eight"]().text(Choices(metric="nvlinkCrcErrors"))


def test_devices_are_put_in_order_and_filtered() -> None:
    watched = NODES["eight-lost"]()
    assert watched.draw(Choices(device_order="state")).devices[:2] == ("gpu.3", "gpu.5")
    assert watched.draw(Choices(device_order="temp")).devices[0] == "gpu.2"
    by_power = [watched.view.device(key) for key in watched.draw(Choices(device_order="util", device_reverse=True)).devices]
    busy = [device.values["utilization"] for device in by_power if device is not None and "utilization" in device.values]
    assert busy == sorted(busy)
    assert [device for device in by_power if device is not None and "utilization" not in device.values] == by_power[-2:]
    filtered = watched.draw(Choices(device_filter="state=bad"))
    assert filtered.devices == ("gpu.3", "gpu.5")
    assert plain(filtered)[-1].startswith("2 of 8 devices: state=bad  q quit")
    assert watched.draw(Choices(device_filter="user=ann2")).devices == ("gpu.4", "gpu.5")
    in_words = watched.draw(Choices(device_filter="state=critical"))
    assert plain(in_words)[-1].startswith("2 of 8 devices: state=critical  q quit")


def test_processes_are_put_in_order_and_filtered() -> None:
    watched = NODES["eight"]()
    drawn = watched.draw(Choices(process_order="pid", process_reverse=True))
    assert drawn.processes == (48123, 48122, 48121, 48120)
    drawn = watched.draw(Choices(process_filter="device=gpu.2"))
    assert drawn.processes == (48121,)
    text = "\n".join(plain(drawn))
    assert "processes 1 of 4" in text
    assert "filter device=gpu.2" in text


def test_a_process_on_many_devices_tells_how_many() -> None:
    assert device_column(range(8)) == "0-7"
    assert device_column((0, 2, 4, 6)) == "0,2,4,6"
    assert device_column(range(0, 64, 2)) == "32 devices"


def device_column(numbers: Iterable[int]) -> str:
    """Draw a process on these GPUs, and give what stands below DEV."""
    watched = Watched(Node(1))
    process = replace(watched.view.processes[0], devices=tuple(f"gpu.{number}" for number in numbers))
    drawn, (line,), _ = process_lines([process], USUAL_CHOICES, 80, ScreenStyle(), 0)
    heading, row = ("".join(text for text, _ in line) for line in (drawn, line))
    at = heading.index("DEV")
    return row[at : heading.index("GPU%")].strip()


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=str)
def test_each_graph_tells_its_unit(size: tuple[int, int]) -> None:
    text = NODES["one"]().text(size=size)
    assert re.search(r"power gpu.0, 1 min .* now \d+ W", text)
    assert re.search(r"temp gpu.0, 1 min .* now \d+ °C", text)


def test_what_is_found_of_several_devices_is_one_line() -> None:
    node = Node(64)
    for number in range(0, 64, 2):
        node.find("ecc_uncorrected", "critical", f"gpu.{number}", "memory errors")
    for number in (1, 3, 5):
        node.find("hot", "warning", f"gpu.{number}", "core above 80 °C")
    node.find("hot", "warning", "gpu.7", "core above 81 °C")
    lines = plain(Watched(node).draw(size=(120, 60)))
    (at,) = [number for number, line in enumerate(lines) if line.startswith("── findings 36")]
    assert [line.split("  ")[0] for line in lines[at + 1 : at + 4]] == ["X gpu.0 and 31 more", "! gpu.1,3,5", "! gpu.7"]
    assert not lines[at].rstrip().endswith("f shows all ─")


def test_what_has_gone_is_not_chosen() -> None:
    drawn = NODES["eight"]().draw(Choices(device="gpu.99", process=1, process_top=50, overlay_top=0))
    assert (drawn.choices.device, drawn.choices.process, drawn.choices.process_top) == ("gpu.0", 48120, 0)


def test_a_question_and_what_is_typed_have_the_terminals_mark() -> None:
    watched = NODES["eight"]()
    drawn = watched.draw(Choices(dialog=("send SIGTERM", "48120 ann python train.py", "y sends it, any other key does not")))
    assert "y sends it" in plain(drawn)[drawn.place[0]]
    assert any("48120 ann python train.py" in line for line in plain(drawn))
    drawn = watched.draw(Choices(input=InputLine("filter", "user=ann", 5)))
    assert drawn.place == (23, len("filter: ") + 5)
    assert plain(drawn)[-1].startswith("filter: user=ann")


def test_values_that_are_old_are_marked() -> None:
    watched = NODES["one"]()
    old = replace(watched.view, devices=tuple(replace(device, aged=True) for device in watched.view.devices), aged=True, age_seconds=9.0)
    watched.view = old
    text = watched.text(size=(120, 40))
    assert "71C?" in text
    assert "no reading for 9 s" in text


def test_without_colours_nothing_but_bold_and_reverse_is_written() -> None:
    watched = NODES["eight-lost"]()
    codes = set(re.findall(r"\x1b\[([\d;]*)m", "".join(watched.draw().ansi(COLOURLESS))))
    assert codes <= {"", "0", "1", "7", "1;7"}
    coloured = "".join(watched.draw().ansi(ScreenStyle("true")))
    assert "38;2;255;138;92" in coloured  # "bad"
    sixteen = set(re.findall(r"\x1b\[([\d;]*)m", "".join(watched.draw().ansi(ScreenStyle("16")))))
    assert all(len(code) < 6 for code in sixteen)


def test_a_summary_is_shown_line_by_line() -> None:
    text = NODES["one"]().text(Choices(overlay="summary", summary=("gpu.0   mean  93 %", "gpu.1   mean   0 %")))
    assert "gpu.0   mean  93 %" in text
    assert "gpu.1   mean   0 %" in text


def test_the_help_names_the_key_of_signals_only_where_they_may_be_sent() -> None:
    watched = NODES["one"]()
    assert "send a signal" not in watched.text(Choices(overlay="help"), (100, 60))
    assert "send a signal" in watched.text(Choices(overlay="help", signals=True), (100, 60))


def test_the_list_of_findings_says_what_is_not_judged_and_what_is_at_rest() -> None:
    """By reason; what a training run would be judged by in one line."""
    one = Watched(Node(2), 3)
    lacks = (
        *(CannotTell(rule, ("gpu.1",), "temp", "device_lost", "the GPU has fallen off the bus") for rule in ("hot", "overheating")),
        *(CannotTell(rule, (), "*", "not_logged", "a rule about a training run: no program logs here") for rule in ("hang", "goodput")),
    )
    one.view = replace(one.view, findings=Findings(cannot_tell=lacks))
    lines = [line.strip() for line in one.text(Choices(overlay="findings"), (100, 30)).splitlines()]
    assert "gpu.1: the GPU has fallen off the bus (hot, overheating)" in lines
    assert "rules about a training run: no program logs here" in lines
    assert "hang" not in " ".join(lines)


def test_what_was_found_of_a_device_that_fell_silent_is_told_as_last_seen() -> None:
    """Its loss is not."""

    def lose(node: Node) -> None:
        node.silence("gpu.0", Reason.DEVICE_LOST, "the GPU has fallen off the bus")
        node.find("hot", "warning", "gpu.0", "core at 83 °C")
        node.find("device_lost", "critical", "gpu.0", "lost: the GPU has fallen off the bus")
        node.find("hot", "warning", "gpu.1", "core at 84 °C")

    lines = Watched(Node(2), change=lose).text(Choices(overlay="findings"), (120, 30)).splitlines()
    assert [", as last seen)" in line for line in lines if "core at 8" in line or "lost:" in line] == [True, False, False]


BACKGROUNDS = {"dark": ("000000", "1e1e1e", "282c34"), "light": ("ffffff", "f5f5f5", "fdf6e3")}
XTERM = ("000000", "cd0000", "00cd00", "cdcd00", "0000ee", "cd00cd", "00cdcd", "e5e5e5")
XTERM_BRIGHT = ("7f7f7f", "ff0000", "00ff00", "ffff00", "5c5cff", "ff00ff", "00ffff", "ffffff")


def colour_of(code: str, which: str) -> str | None:
    """Return the colour that an SGR code sets for the text (``38``) or behind it (``48``), in six digits; None for none."""
    if found := re.search(rf"{which};2;(\d+);(\d+);(\d+)", code):
        return "".join(f"{int(part):02x}" for part in found.groups())
    if found := re.search(rf"{which};5;(\d+)", code):
        number = int(found[1]) - 16
        steps = (0, 95, 135, 175, 215, 255)
        grey = 8 + 10 * (number - 216)
        parts = (grey,) * 3 if number >= 216 else (steps[number // 36], steps[number // 6 % 6], steps[number % 6])
        return "".join(f"{part:02x}" for part in parts)
    found = re.search(r"\b([39])([0-7])\b", code) if which == "38" else None
    return None if found is None else (XTERM if found[1] == "3" else XTERM_BRIGHT)[int(found[2])]


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colours", ["true", "256", "16"])
@pytest.mark.parametrize("theme", BACKGROUNDS)
def test_every_colour_can_be_read_on_its_background_and_in_the_chosen_row(theme: Theme, colours: Colours) -> None:
    usual = BACKGROUNDS[theme][: 1 if colours == "16" else None]
    for role, code in CODES[colours, theme].items():
        ink, behind = colour_of(code, "38"), colour_of(code, "48")
        assert ink is not None or behind is None, role
        for background in usual if behind is None else (behind,):
            assert ink is None or contrast(ink, background) >= 4.5, (role, background)


@pytest.mark.parametrize("colours", ["true", "256", "16", "none"])
def test_the_chosen_row_keeps_the_ink_of_its_bars_and_history(colours: Colours) -> None:
    style = ScreenStyle(colours)
    row = next(line for line in Watched(Node(2)).draw(size=(100, 24), style=style).ansi(style) if "━" in line and ">" in line)
    parts = re.findall(r"(?:\x1b\[([\d;]*)m)?([^\x1b]+)(?:\x1b\[0m)?", row)
    blocks = [code for code, text in parts if re.search("[━▁-█]", text)]
    assert len(blocks) >= 3
    assert not any(re.search(r"\b7\b", re.sub(r"[34]8;[25];[\d;]*", "", code)) for code in blocks)
    around = [code for code, text in parts if "gpu.0" in text]
    assert all("48;" in code or re.search(r"\b7$", code) for code in around)


def test_rows_do_not_touch() -> None:
    """No mark of a bar or a history fills its line to the top."""
    text = Watched(Node(8)).text(size=(120, 12), style=ScreenStyle())
    assert re.search("[▅-▇]", text)
    assert "█" not in text


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)], ids=str)
def test_memory_and_power_have_bars_beside_utilisation(size: tuple[int, int]) -> None:
    watched = Watched(Node(8))
    row = next(line for line in plain(watched.draw(size=size)) if "gpu.1" in line)
    assert len(re.findall(r"[━─]{5,} +\d", row)) == 3, row


def test_a_graph_has_three_numbers_with_their_unit_and_times_below() -> None:
    lines = plain(Watched(Node(8)).draw(Choices(scale="5 min")))
    (at,) = [number for number, line in enumerate(lines) if line.startswith("── power gpu.0, 5 min")]
    rows = lines[at + 1 : at + 7]
    assert [row.partition("│")[0].strip() for row in rows if "│" in row and row.partition("│")[0].strip()] == ["700 W", "350 W", "0 W"]
    assert re.findall(r"-\d+ min|now", rows[-1]) == ["-5 min", "-4 min", "-3 min", "-2 min", "-1 min", "now"]
    assert rows[-1].rstrip().endswith("now")
    assert len(rows[-1].rstrip()) == 80


@pytest.mark.parametrize(
    ("unit", "value", "words"),
    [
        ("By/s", 3e6, "4 MiB/s"),
        ("MHz", 1410.0, "2000 MHz"),
        ("By", 6e10, "64 GiB"),
        ("By", 7e8, "1 GiB"),
        ("MHz", 1.1e308, "1e+308"),
        ("By", 1.7e308, "9e+307"),
    ],
)
def test_a_scale_without_an_end_has_a_round_one_in_its_unit(unit: str, value: float, words: str) -> None:
    points = [TrailPoint("value", value, value, value)] * 40
    drawn = line_graph("title", [Series("one", points)], unit, None, 60.0, (60, 8), ScreenStyle())
    assert "".join(text for text, _ in drawn[1]).partition("│")[0].strip() == words


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        ("15 s", ["-15 s", "-12 s", "-9 s", "-6 s", "-3 s", "now"]),
        ("2 min", ["-2 min", "-1.5 min", "-1 min", "-0.5 min", "now"]),
        ("15 min", ["-15 min", "-12 min", "-9 min", "-6 min", "-3 min", "now"]),
        ("3 h", ["-3 h", "-2 h", "-1 h", "now"]),
        ("24 h", ["-24 h", "-18 h", "-12 h", "-6 h", "now"]),
    ],
)
def test_times_are_true_at_every_zoom(scale: str, words: list[str]) -> None:
    rows = plain(Watched(Node(8)).draw(Choices(scale=scale)))
    assert any(re.findall(r"-[\d.]+ (?:s|min|h)|now", row) == words for row in rows)


def test_the_past_has_times_of_the_clock() -> None:
    """In the graph and in the histories of the rows; the foot says how to come back."""
    watched = Watched(Node(8), seconds=90)
    until = watched.view.time_ns - 30 * SECOND
    watched.trails.until_ns = until
    lines = plain(watched.draw(Choices(scale="30 s", until_ns=until), (80, 30)))
    end = time.strftime("%H:%M:%S", time.localtime(until / 1e9))
    assert any(f"power gpu.0, 30 s to {end}" in line and "last 890 W" in line for line in lines)
    assert any(re.fullmatch(r" +\d\d:\d\d:\d[05]( +\d\d:\d\d:\d[05]){1,5} *", line) for line in lines)
    assert lines[-1].startswith("0 returns to now")
    assert not any("LAST" in line for line in lines)


@pytest.mark.parametrize("columns", [30, 38, 60, 120, 200])
@pytest.mark.parametrize("scale", SPANS)
def test_clock_times_are_round_and_at_even_distances(scale: str, columns: int) -> None:
    """At any width, and also if the right edge is between two of them."""
    seconds = SPANS[scale]
    for end in (1_790_000_017, 1_790_003_600, 1_790_021_111):
        line = "".join(text for text, _ in time_axis(seconds, columns, ScreenStyle(), end * SECOND))
        found = list(re.finditer(r"\d\d:\d\d(:\d\d)?", line))
        assert 1 <= len(found) <= 6
        times = [60 * (60 * int(one[0][:2]) + int(one[0][3:5])) + int(one[0][6:] or 0) for one in found]
        steps = {(later - earlier) % 86400 for earlier, later in pairwise(times)}
        assert len(steps) <= 1
        for step in steps:
            assert step in CLOCK_STEPS
            assert all(at % step == 0 for at in times)
        gaps = [later.start() - earlier.start() for earlier, later in pairwise(found)]
        assert not gaps or max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
def test_metrics_of_two_units_have_a_scale_at_each_side(size: tuple[int, int]) -> None:
    """Those of one unit share it; the host's are among them."""
    choices = Choices(metric="power_watts", beside=("utilization", "host.cpu_percent"))
    lines = plain(Watched(Node(8)).draw(choices, size))
    (at,) = [number for number, line in enumerate(lines) if line.startswith("── gpu.0, 1 min")]
    assert re.search("util 0?.*host CPU.*power", lines[at])
    assert re.search(r"^ +100 %│.*│700 W ", lines[at + 1])
    assert any(re.search(r"^ +0 %│.*│0 W ", line) for line in lines[at + 2 : at + 20])


def test_metrics_of_more_units_are_each_drawn_on_a_scale_of_their_own() -> None:
    choices = Choices(metric="power_watts", beside=("utilization", "temperature_celsius"))
    lines = plain(Watched(Node(1)).draw(choices, (120, 40)))
    (at,) = [number for number, line in enumerate(lines) if line.startswith("── gpu.0, 1 min, own scales")]
    assert re.search(r"util \d+ %.*temp 71 °C.*power \d+ W", lines[at])
    assert lines[at + 1].startswith("   100 %│")


def test_a_metric_of_the_host_is_one_of_those_that_graphs_show() -> None:
    watched = Watched(Node(8))
    names = [row.name for row in graph_metrics(watched.view)]
    assert {"host.cpu_percent", "host.memory_percent", "memory_percent"} <= set(names)
    for graphs in ("chosen", "lines", "band"):
        assert "── CPU host, 1 min" in watched.text(Choices(metric="host.cpu_percent", graphs=graphs))
    assert "now 12 %  max 12 %" in watched.text(Choices(metric="host.cpu_percent"))


@pytest.mark.parametrize("style", [ScreenStyle(), ScreenStyle(ascii=True), COLOURLESS, ScreenStyle("none")], ids=str)
def test_several_devices_are_lines_of_one_graph_that_can_be_told_apart(style: ScreenStyle) -> None:
    watched = Watched(Node(3))
    drawn = watched.draw(Choices(device="gpu.1", graphs="lines", metric="utilization"), (80, 40), style)
    (at,) = [number for number, line in enumerate(plain(drawn)) if re.match("(──|--) util, 1 min", line)]
    legend = [text for text, role in drawn.lines[at] if role in ("s0", "s1", "s2")]
    assert [re.search(r"gpu\.\d", text)[0] for text in legend] == ["gpu.1", "gpu.0", "gpu.2"]  # type: ignore[index]
    body = [(text.strip(), role) for line in drawn.lines[at + 1 : at + 9] for text, role in line if role in ("s0", "s1", "s2")]
    assert {role for _, role in body} == {"s0", "s1", "s2"}
    if style.ascii or style.colours == "none":
        for role, mark in (("s0", "*"), ("s1", "+"), ("s2", "o")):
            assert {text for text, found in body if found == role} <= {mark * count for count in range(1, 99)}


def test_a_line_has_a_gap_where_nothing_was_read() -> None:
    value = TrailPoint("value", 50.0, 50.0, 50.0)
    points = [*[value] * 40, *[TrailPoint("gap")] * 42, *[value] * 20]
    row = next(
        "".join(text for text, _ in line)
        for line in line_graph("title", [Series("one", points)], "%", 100.0, 60.0, (60, 7), ScreenStyle())[1:]
        if re.search("[⠁-⣿]", "".join(text for text, _ in line))
    )
    assert re.fullmatch(r".*│[⠁-⣿]{20} {21}[⠁-⣿]{10}", row)


def test_a_legend_names_all_lines_with_as_much_as_there_is_room_for() -> None:
    lines = plain(Watched(Node(8)).draw(Choices(graphs="lines"), (120, 40)))
    title = next(line for line in lines if "── power, 1 min" in line).split("── util")[0]
    assert re.findall(r"[*+ox#@%&] (\d)\b", title) == list("01234567")


def test_one_device_in_full() -> None:
    """Its numbers in words and units, a graph of each group, its processes, and what is missing by reason; raw keys are folded."""
    node = Node(2)
    node.set("gpu.0", {"nvlink.0.state": 1.0, "nvlink.1.state": 1.0, "pcieTxBytes": 3e6, "pcieRxBytes": 909})
    node.miss("gpu.0", ("fanSpeed", "energyJoules"), Reason.NOT_SUPPORTED, "no sensor")
    watched = Watched(node)
    for name in ("pcie_tx_bytes_per_second", "pcie_rx_bytes_per_second"):
        watched.trails.follow(name)
    watched.trails.add(node_view(node.record(), before=watched.view))
    opened = Choices(overlay="details", device="gpu.0")
    lines = plain(watched.draw(opened, (80, 120)))
    titles = [line[3:].split("  ")[0].partition(" ─")[0] for line in lines if line.startswith("── ")]
    assert titles[1:9] == ["Utilisation", "Memory", "Power", "Temperature", "Clocks", "Links", "Errors", "processes"]
    assert sum(line.startswith("── ") and line.endswith(" 1 min ─") for line in lines) == 6
    text = "\n".join(lines)
    for words in ("util 1 %", "memory used 45.2/80.0 GiB", "power 590/700 W", "temp 71 °C", "clock 1980 MHz", "PCIe 5.0 x16, NVLink 2 up"):
        assert re.search(words, text), words
    assert "PCIe sent 2.9 MiB/s" in text and "PCIe received 909 B/s" in text
    assert re.search(r"^    48120  ann0 .*train\.py", text, re.MULTILINE)
    assert re.search(r"^  n/a +fan, energy: no sensor", text, re.MULTILINE)
    assert "nvlink.0.state" not in text
    assert re.search(r"^── all keys: \d+, 2 missing ─+ e shows them ─", text, re.MULTILINE)
    unfolded = watched.text(replace(opened, unfolded=True), (80, 160))
    assert re.search(rf"^  memoryAllocatedBytes +{int(45.2 * GIB)} *$", unfolded, re.MULTILINE)
    assert "nvlink.0.state" in unfolded
    assert re.search(r"^  not supported +energyJoules, fanSpeed: no sensor", unfolded, re.MULTILINE)


@pytest.mark.parametrize(
    ("size", "hot", "full"), [((80, 24), "88C!", "95%!"), ((120, 40), "88C hot", "95% full"), ((200, 60), "88C hot", "95% full")]
)
def test_what_a_colour_says_of_a_number_is_said_beside_it(size: tuple[int, int], hot: str, full: str) -> None:
    """Numbers stand below each other all the same."""
    node = Node(4)
    node.set("gpu.1", {"temp": 88, "memoryAllocated": 95.0})
    lines = plain(Watched(node).draw(size=size))
    (row,) = [line for line in lines if line.startswith(" !gpu.1")]
    assert f" {hot} " in row and f" {full} " in row
    (other,) = [line for line in lines if line.startswith("> gpu.0")]
    assert other.index("71C") == row.index("88C") and other.index("57%") == row.index("95%")
    assert "temp 88 °C, hot" in Watched(node).text(Choices(overlay="details", device="gpu.1"), (120, 90))


@pytest.mark.parametrize(("size", "legends"), [((80, 24), 1), ((120, 40), 2), ((200, 60), 3)])
def test_a_training_is_shown_over_the_time_of_the_devices(size: tuple[int, int], legends: int) -> None:
    """In as many graphs as those of the devices; each line from its least value to its greatest, findings at the foot."""
    lines = plain(NODES["trained"]().draw(USUAL_CHOICES, size, ScreenStyle()))
    (title,) = (number for number, line in enumerate(lines) if "loss" in line and "training" in line)
    assert lines[title].count("training job 実験") == legends
    text = "\n".join(lines[title:])
    for words in (
        "loss 0.6",
        "step 1 s",
        "tokens/s 100000",
        "tokens/J 9.5",
        *(["learning rate 0.0003", "gradient norm 1"] if legends > 1 else []),
    ):
        assert words in text
    foot = next(line for line in lines[title:] if "least│" in line)
    assert foot.count("X") == legends
    power = next(number for number, line in enumerate(lines) if "── power gpu.0" in line)
    above = lines[power + 1]
    assert [at for at, one in enumerate(above) if one == "│"][:legends] == [at for at, one in enumerate(foot) if one == "│"][:legends]
    assert "training" not in "".join(plain(NODES["trained"]().draw(Choices(training=HIDDEN), size, ScreenStyle())))


def test_a_single_number_of_a_training_has_its_scale() -> None:
    """Its least and greatest value stand beside the graph."""
    points = [TrailPoint("value", value, value, value) for value in (2.0, 2.5, 2.25)]
    lines = [
        "".join(text for text, _ in line)
        for line in line_graph("training", [Series("loss", points, "1", own=True)], "1", None, 60, (60, 9), ScreenStyle())
    ]
    assert "loss 2.25 (2–2.5)" in lines[0]
    assert [line[:8].strip() for line in lines[1:8]] == ["2.5", "", "", "2.25", "", "", "2"]
