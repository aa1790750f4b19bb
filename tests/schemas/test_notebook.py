"""What a notebook shows: HTML that is escaped and bounded, data frames, one-line reprs."""

from __future__ import annotations

import json
import sys
from html.parser import HTMLParser
from math import isnan
from pathlib import Path
from typing import Any

import pytest

import accelmetrics
from accelmetrics import BackendStatus, MissingDependencyError, Monitor, Sampler, Snapshot, UnknownNameError
from accelmetrics.schemas.identity import DeviceIdentity, DeviceSlot
from accelmetrics.schemas.recording import RecordFile
from accelmetrics.schemas.ring import History, Ring
from accelmetrics.testing import FakeBackend, FakeClock
from tests.monitor.watching import gpus, put, row, ticks
from tests.records import record
from tests.schemas.samples import complete

NAME = "<script>alert('H100')</script> & co"


class Cells(HTMLParser):
    """The cells of tables, row by row; anything that is no table's is an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.caption = ""
        self._tags: list[str] = []
        self.feed(text)
        assert not self._tags

    def handle_starttag(self, tag: str, attributes: object) -> None:
        assert tag in {"table", "caption", "tr", "th", "td"}
        self._tags.append(tag)
        if tag == "tr":
            self.rows.append([])

    def handle_endtag(self, tag: str) -> None:
        assert self._tags.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._tags[-1] == "caption":
            self.caption += data
        else:
            self.rows[-1].append(data)


def machine(devices: int, name: str = "NVIDIA H100 80GB HBM3") -> Snapshot:
    """As many GPUs, all alike."""
    slots = [DeviceSlot(f"gpu.{i}", i, None, DeviceIdentity("gpu", "nvidia", i, name)) for i in range(devices)]
    values = {"gpu": 37, "memoryAllocatedBytes": 11 * 2**30, "memoryTotalBytes": 80 * 2**30, "powerWatts": 294.04, "temp": 41}
    metrics: dict[str, int | float] = {f"{slot.key}.{key}": value for slot in slots for key, value in values.items()}
    backends = [BackendStatus("nvidia", "ok", ""), BackendStatus("amd", "failed", "<b>librocm</b> " + "x" * 5000)]
    return Snapshot(1_790_000_000_000_000_000, "node7", metrics, slots, {}, backends)


def test_a_snapshot_is_a_table_of_its_devices_and_of_what_failed() -> None:
    shown = Cells(machine(2, NAME)._repr_html_())
    assert shown.caption == "node7 2026-09-21T14:13:20.000000Z: 10 metrics, 0 unavailable"
    assert shown.rows[1] == ["gpu.0", NAME, "37 %", "11.0/80.0 GiB", "294 W", "41 °C"]
    assert shown.rows[4][:2] == ["amd", "failed"]
    assert len(shown.rows) == 5


def test_its_size_is_bounded() -> None:
    """However many devices there are, and however long texts are."""
    shown = Cells(machine(1024, "x" * 100_000)._repr_html_())
    assert ["and 960 more"] in shown.rows
    assert len(machine(1024, "x" * 100_000)._repr_html_()) < 64 * 500


def test_a_device_that_says_nothing_says_why() -> None:
    backend = FakeBackend(devices=1)
    backend.device(0).set(temp=40, gpu=3)
    with Sampler([backend]) as sampler:
        sampler.sample()
        backend.device(0).lose()
        assert "lost" in Cells(sampler.sample()._repr_html_()).rows[1]


def test_a_window_is_a_table_of_what_each_device_did() -> None:
    with Monitor(0.02, backends=[gpus(2, powerWatts=100.0, gpu=50, temp=61)]) as monitor:
        with monitor.window("<i>epoch</i>") as window:
            ticks(monitor, 3)
        shown = Cells(window._repr_html_())
    assert shown.caption.startswith("<i>epoch</i>: ")
    assert shown.rows[1][:6] == ["gpu.0", "50 %", "–", "100 W", "100 W", "61 °C"]
    assert [cells[0] for cells in shown.rows] == ["device", "gpu.0", "gpu.1"]


def test_reprs_are_short() -> None:
    """One line each: of a snapshot, a device, typed views, a window, the history, a monitor, a sampler, a recording."""
    snapshot = complete()
    monitor = Monitor(0.5, backends=[gpus(1)], exporters=["console"])
    assert repr(monitor) == "<Monitor every 0.5 s: not running, 0 readings, 1 exporters>"
    with monitor:
        ticks(monitor, 2)
        shown = [snapshot, snapshot.devices[0], snapshot.devices[0].metrics, snapshot.host, monitor.window("w"), monitor.history, monitor]
        texts = [repr(one) for one in [*shown, Sampler(["host"]), RecordFile("run.jsonl"), machine(8)]]
    assert all("\n" not in text and len(text) < 400 for text in texts), texts
    assert "memory=7.25, " in texts[2]
    assert texts[2].endswith("more)")
    assert "<Window 'w': not begun>" in texts
    assert "<Sampler of host: 0 readings>" in texts
    assert texts[6].startswith("<Monitor every 0.5 s: running, ")


def test_history_as_a_data_frame() -> None:
    """A row a reading by time in UTC, NaN where a key was absent."""
    pandas = pytest.importorskip("pandas")
    ring = Ring(10)
    put(ring, row({"gpu.0.temp": 40.0, "cpu": 1.5}, 1.25))
    put(ring, row({"gpu.0.temp": 41.0}, 2.0))
    found = History(ring).to_pandas()
    assert list(found.columns) == ["gpu.0.temp", "cpu"]
    assert str(found.index.tz) == "UTC"
    assert found.index[0] == pandas.Timestamp(1e9 + 1.25, unit="s", tz="UTC")
    assert found["gpu.0.temp"].tolist() == [40.0, 41.0]
    assert isnan(found["cpu"].iloc[1])
    assert set(map(str, found.dtypes)) == {"float64"}
    assert History(Ring(0)).to_pandas().empty


def test_a_recording_as_a_data_frame(tmp_path: Path) -> None:
    """With what the program logged; a key that comes late, or goes, is NaN before and after."""
    pytest.importorskip("pandas")
    path = tmp_path / "run.jsonl"
    first = record(2)
    second = first._replace(snapshot=Snapshot(first.snapshot.time_ns + 10**9, "vm", {"cpu": 2.5, "late": 1}), steps=())
    path.write_text("".join(f"{json.dumps(one.to_dict())}\n" for one in (first, second)))
    (recording,) = accelmetrics.recordings(path)
    found = recording.to_pandas()
    assert (found.index[1] - found.index[0]).total_seconds() == 1
    assert found["gpu.0.powerWatts"].iloc[0] == first.snapshot.metrics["gpu.0.powerWatts"]
    assert isnan(found["gpu.0.powerWatts"].iloc[1])
    assert isnan(found["late"].iloc[0])
    assert found["late"].iloc[1] == 1
    name, value = next(iter(first.steps[-1].values.items()))
    assert found[f"training.{name}"].iloc[0] == value
    assert set(recording.to_pandas("gpu.*.powerWatts,-gpu.1.*").filter(like="gpu.").columns) == {"gpu.0.powerWatts"}
    with pytest.raises(UnknownNameError, match="powerWatts"):
        recording.to_pandas("powerWats")


def test_without_pandas_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    clock: Any = FakeClock()
    with pytest.raises(MissingDependencyError, match=r"pip install 'accelmetrics\[pandas\]'"):
        Monitor(backends=[gpus(1)], clock=clock).history.to_pandas()
