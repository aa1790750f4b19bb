"""One frozen reading on every surface: the numbers of ``dump --json`` in the words and the rounding of ``schemas/text.py``."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from accelmetrics.cli import formats, watch
from accelmetrics.exporters.console import line
from accelmetrics.schemas import text
from accelmetrics.schemas.errors import WORDS, Reason
from accelmetrics.schemas.identity import BackendStatus
from accelmetrics.schemas.record import Record
from accelmetrics.views import page
from accelmetrics.views.device_view import GROUPS
from accelmetrics.views.node_view import node_view
from accelmetrics.views.page.documents import plain_page, state_document
from accelmetrics.views.report.making import report_of_files
from accelmetrics.views.report.texts import text as report_text
from accelmetrics.views.terminal.picture import picture
from accelmetrics.views.terminal.style import ScreenStyle
from accelmetrics.views.trails import Trails
from tests.cli.test_report import write
from tests.views.nodes import GIB, Node, plain
from tests.views.report.test_html import Reading

VALUES = {"gpu": 12.5, "memoryAllocated": 62.5, "memoryAllocatedBytes": 61.25 * GIB, "powerWatts": 300.5, "temp": 70.5}
"""Of ``gpu.0``: each is a tie, which Python's own formats round to the even neighbour."""
OTHERS = {"gpu": 86.5, "memoryAllocated": 6.5, "memoryAllocatedBytes": 5.25 * GIB, "powerWatts": 612.5, "temp": 88}
HUNG = "a call into the driver has not returned"
GONE = "NVML_ERROR_GPU_IS_LOST"
SOUND, SILENT = ("gpu.0", "gpu.1"), {"gpu.2": Reason.DEVICE_LOST, "gpu.3": Reason.TIMED_OUT}


def frozen() -> Record:
    """Two devices whose values are ties, one of them hot; one that is lost, one that hangs."""
    node = Node(4)
    node.set("gpu.0", VALUES)
    node.set("gpu.1", OTHERS)
    node.silence("gpu.2", Reason.DEVICE_LOST, GONE)
    node.silence("gpu.3", Reason.TIMED_OUT, HUNG)
    detail = f"gpu.2: device_lost: {GONE}; gpu.3: timed_out: {HUNG}"
    node.sources["nvidia"] = BackendStatus("nvidia", "degraded", detail, "nvml", 0.01, "", 0.0, 1, 4)
    node.find("hot", "warning", "gpu.1", "at its limit")
    return node.record()


def screen(columns: int, rows: int) -> Callable[[Record, Path], str]:
    def drawn(record: Record, _: Path) -> str:
        view, trails = node_view(record), Trails()
        trails.add(view)
        size, style = os.terminal_size((columns, rows)), ScreenStyle(colours="none", braille=False)
        return "\n".join(plain(picture(view, trails, size=size, style=style)))

    return drawn


def plain_lines(record: Record, _: Path) -> str:
    view = node_view(record)
    return "\n".join((*watch.changes(None, view), *watch.overview(view)))


def reported(record: Record, folder: Path) -> str:
    found = report_of_files([write(folder / "run.jsonl", [record])])
    assert found is not None
    return report_text(found.document)


def without_scripts(page: str) -> str:
    """The findings and the rows of the tables, a line each."""
    return "\n".join([*re.findall("<li>(.*?)</li>", page), *(" ".join(row) for row in Reading(page).rows)])


SURFACES: dict[str, Callable[[Record, Path], str]] = {
    "dump": lambda record, _: formats.screen(record.snapshot, 120),
    "dump NAME": lambda record, _: formats.chosen(record.snapshot, 200),
    "watch 80x24": screen(80, 24),
    "watch 200x60": screen(200, 60),
    "watch --plain": plain_lines,
    "page without scripts": lambda record, _: without_scripts(plain_page(node_view(record))),
    "console": lambda record, _: line(record.snapshot, list(record.findings), 200),
    "report": reported,
}
JUDGED = frozenset(SURFACES) - {"dump", "dump NAME"}
"""Surfaces that are given findings: of a single reading, `dump` finds those that need no time."""


def written(surface: str, values: dict[str, float]) -> list[str]:
    """Return how a surface writes a device's values, from those of the JSON document."""
    use, share, used, total = (values[name] for name in ("gpu", "memoryAllocated", "memoryAllocatedBytes", "memoryTotalBytes"))
    drawn, limit, heat = (values[name] for name in ("powerWatts", "enforcedPowerLimitWatts", "temp"))
    amount, power = text.memory(used, total), text.watts(drawn, limit)
    if surface == "dump NAME":  # in full
        pairs = ((use, "%"), (share, "%"), (used, "By"), (drawn, "W"), (heat, "Cel"))
        return [text.quantity(value, unit) for value, unit in pairs]
    if surface == "dump":  # units stand in the heads of the columns
        return [text.percent(use), amount.removesuffix(" GiB"), power.removesuffix(" W"), f" {text.fixed(heat)} "]
    if surface.startswith("watch "):
        if surface == "watch --plain":
            return [f"util {text.percent(use)}", f"memory {amount}", power, text.celsius(heat)]
        rest = [text.percent(one).replace(" ", "") for one in (use, share)]
        return [*rest, amount.removesuffix(" GiB"), power.removesuffix(" W"), f"{text.fixed(heat)}C"]
    if surface == "console":
        return [f"{text.percent(use)}/{text.percent(share)}".replace(" ", "")]
    if surface == "report":  # means have one decimal, what is a reading is whole
        stored = (text.fixed(used / GIB, 1),) * 2
        return [" ".join((text.fixed(use, 1), text.fixed(use))), " ".join(stored), text.fixed(drawn, 1), text.fixed(heat)]
    return [text.percent(use), text.percent(share), power, text.celsius(heat)]


def about(shown: str, key: str) -> str:
    """Return the lines about a device, without what aligns them."""
    names = (key, key.upper().replace(".", ""))
    return "\n".join(f"{' '.join(one.split())} " for one in shown.splitlines() if any(name in one for name in names))


@pytest.mark.parametrize("surface", SURFACES)
def test_a_surface_says_what_the_document_says(surface: str, tmp_path: Path) -> None:
    record = frozen()
    document = json.loads(record.snapshot.to_json())
    shown = SURFACES[surface](record, tmp_path)
    for key in SOUND:
        values = {name.removeprefix(f"{key}."): value for name, value in document["metrics"].items() if name.startswith(f"{key}.")}
        lines = about(shown, key)
        assert [one for one in written(surface, values) if one not in lines] == [], lines
    for key in SILENT if surface != "report" else ():  # a report has dashes
        (reason,) = {why["reason"] for name, why in document["unavailable"].items() if name.startswith(f"{key}.")}
        assert WORDS[reason] in about(shown, key)
    assert re.findall(r"\b(?:bad|warn)\b", shown) == []
    if surface in JUDGED:
        (finding,) = record.findings
        assert finding.rule in shown or finding.message in shown
        assert finding.severity in shown or surface == "console"  # which has the mark
    if surface in ("watch 80x24", "watch 200x60", "watch --plain"):
        assert "1 lost" in shown and "1 no answer" in shown


def test_one_cause_is_one_remark_of_a_dump() -> None:
    """Of a source that lacks devices, the devices have said why; what else is wrong with it is not lost."""
    record = frozen()
    shown = formats.screen(record.snapshot, 120)
    assert (shown.count(GONE), shown.count(HUNG), shown.count("source nvidia")) == (1, 1, 0)
    node = Node(2)
    node.silence("gpu.0", Reason.DEVICE_LOST, GONE)
    detail = f"gpu.0: device_lost: {GONE}; gpu.1: parse_error: no number"
    node.sources["nvidia"] = BackendStatus("nvidia", "degraded", detail, "nvml", 0.01, "", 0.0, 1, 2)
    assert "source nvidia: degraded" in formats.screen(node.record().snapshot, 120)


def test_a_dump_finds_what_the_first_reading_of_watch_finds() -> None:
    """With the same severity; the advice for several devices is told once."""
    node = Node(3)
    node.set("gpu.0", {"uncorrectedMemoryErrors": 1})
    node.set("gpu.2", {"uncorrectedMemoryErrors": 1, "correctedMemoryErrors": 5})
    shown = formats.screen(node.record().snapshot, 120)
    assert [about(shown, key).count("critical") for key in ("gpu.0", "gpu.1", "gpu.2")] == [1, 0, 1]
    assert [about(shown, key).count("uncorrected errors: 1") for key in ("gpu.0", "gpu.2")] == [1, 1]
    assert shown.count("Results since then may be wrong") == 1


def test_the_page_gets_the_numbers_of_the_document() -> None:
    """In full: its scripts round them by the same rules. States and reasons have their words."""
    record = frozen()
    metrics = json.loads(record.snapshot.to_json())["metrics"]
    state = state_document(node_view(record), 1)
    names = {"utilization": "gpu", "memory_percent": "memoryAllocated", "memory_used_bytes": "memoryAllocatedBytes"}
    names |= {"power_watts": "powerWatts", "power_limit_watts": "enforcedPowerLimitWatts", "temperature_celsius": "temp"}
    for device in state["devices"]:
        given = {name: device["values"].get(name) for name in names}
        assert given == {name: metrics.get(f"{device['key']}.{ours}") for name, ours in names.items()}
        if device["key"] in SILENT:
            assert device["silent"]["word"] == WORDS[SILENT[device["key"]]]
    assert [device["state"] for device in state["devices"]] == ["ok", "warn", "bad", "bad"]
    assert [finding["severity"] for finding in state["findings"]] == ["warning"]


def test_one_device_in_full_has_the_same_groups_on_the_page_and_in_the_terminal() -> None:
    """By title: the numbers, and those that have a graph together."""
    script = (Path(page.__file__).parent / "static" / "detail.js").read_text()
    table = script.partition("const GROUPS = {\n")[2].partition("\n};")[0]
    titles = re.findall(r"^  (\w+): \{", table, re.MULTILINE)
    assert titles == list(GROUPS)
    for title, found in zip(titles, re.split(r"^  \w+: \{", table, flags=re.MULTILINE)[1:], strict=True):
        values, _, lines = found.partition("graph:")
        drawn, names = GROUPS[title]
        assert set(re.findall(r'"([a-z_]{3,})"', values)) == set(names)
        assert re.findall(r'"([a-z_]{3,})"', lines) == list(names[:drawn])
