"""The file for node_exporter's textfile collector: whole at every moment, and gone when it is no longer kept fresh."""

from __future__ import annotations

import errno
import os
import re
import threading
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from accelmetrics.exporters.textfile import TextfileExporter
from accelmetrics.schemas.errors import InvalidOptionError
from accelmetrics.schemas.identity import DeviceProcess
from tests.exporters.files_tools import failing
from tests.exporters.prometheus_server import Server, check_metrics, fetch, program
from tests.records import record
from tests.support.exporting import exporting
from tests.support.network import free_port


def names(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


@pytest.mark.servers
def test_node_exporter_serves_what_is_in_the_file(tmp_path: Path) -> None:
    """The real collector reads it without a complaint, and drops it when the exporter is closed."""
    exporter = TextfileExporter(tmp_path / "new" / "accel.prom")
    exporter.open()
    exporter.export(record())
    port = free_port()
    options = [f"--web.listen-address=127.0.0.1:{port}", "--collector.disable-defaults", "--collector.textfile"]
    command = [program("prometheus-node-exporter"), *options, f"--collector.textfile.directory={tmp_path / 'new'}"]
    with Server(command, port, "/", tmp_path) as server:
        text = fetch(f"{server.url}/metrics")
        assert 'accel_power_watts{accelerator="gpu.0",uuid="GPU-5cf1a7ed-0000-4000-8000-000000000000"} 300' in text
        assert "node_textfile_scrape_error 0" in text
        exporter.close()
        text = fetch(f"{server.url}/metrics")
        assert "accel_power_watts" not in text
        assert "node_textfile_scrape_error 0" in text


def test_the_file_is_whole_at_every_moment(tmp_path: Path) -> None:
    """A reader that looks all the time never sees half a file, and nothing lies beside it but for the moment of writing."""
    exporter = TextfileExporter(tmp_path / "accel.prom")
    exporter.open()
    exporter.export(record(1))
    seen: set[bytes] = set()
    ended = threading.Event()

    def read() -> None:
        while not ended.is_set():
            seen.add(exporter.path.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(60):
        exporter.export(record(4 if turn % 2 else 1))  # made now: one that has grown old is not served
    ended.set()
    reader.join()
    assert all(text.startswith(b"# HELP") and text.endswith(b"\n") for text in seen)
    assert {text.count(b"\naccel_power_watts{") for text in seen} == {1, 4}
    assert names(tmp_path) == ["accel.prom"]


@pytest.mark.servers
def test_promtool_finds_nothing_wrong(tmp_path: Path) -> None:
    """There are no timestamps, and every user may read it."""
    exporter = TextfileExporter(tmp_path / "accel.prom")
    exporter.open()
    exporter.export(record())
    text = exporter.path.read_bytes()
    assert check_metrics(text) == ""
    assert {sample.timestamp for family in parse(text.decode()) for sample in family.samples} == {None}
    assert exporter.path.stat().st_mode & 0o777 == 0o644


def test_a_failed_write_leaves_the_last_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error while writing is passed on, the file stays as it was, and no other is left; the next record is written."""
    exporter = TextfileExporter(tmp_path / "accel.prom")
    exporter.open()
    exporter.export(record(1))
    before = exporter.path.read_bytes()

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing(errno.ENOSPC))
        with pytest.raises(OSError, match="No space left"):
            exporter.export(record(2))
    assert exporter.path.read_bytes() == before
    assert names(tmp_path) == ["accel.prom"]
    exporter.export(record(2))
    assert exporter.path.read_bytes().count(b"\naccel_power_watts{") == 2


def test_it_can_be_closed_at_any_time(tmp_path: Path) -> None:
    """Also before it was opened, twice, and when the file has been removed; and opened again."""
    exporter = TextfileExporter(tmp_path / "accel.prom")
    exporter.close()
    for _ in range(2):
        with exporting(exporter):
            exporter.export(record())
            exporter.path.unlink()
        exporter.close()
    assert names(tmp_path) == []


def test_a_name_that_node_exporter_passes_over_is_refused() -> None:
    """The collector reads ``*.prom`` alone."""
    with pytest.raises(InvalidOptionError, match=r"must end in \.prom"):
        TextfileExporter("accel.txt")


def test_it_stays_where_it_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path means the directory of the moment, wherever the program goes later; a tilde means home."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    exporters = [TextfileExporter("one.prom"), TextfileExporter("~/two.prom")]
    for exporter in exporters:
        exporter.open()
        exporter.export(record())
    monkeypatch.chdir(tmp_path / "elsewhere")
    for exporter in exporters:
        exporter.export(record())
    assert sorted(names(tmp_path)) == ["elsewhere", "one.prom", "two.prom"]
    for exporter in exporters:
        exporter.close()
    assert names(tmp_path) == ["elsewhere"]


def test_only_the_file_that_it_wrote_is_removed(tmp_path: Path) -> None:
    """Closing leaves a file that another writer has put there, before this one wrote anything or after."""
    path = tmp_path / "accel.prom"
    path.write_text("mine 1\n")
    exporter = TextfileExporter(path)
    exporter.open()
    exporter.close()
    assert path.read_text() == "mine 1\n"
    with exporting(exporter):
        exporter.export(record())
        other = TextfileExporter(path)
        other.open()
        other.export(record())
    assert path.exists()
    other.close()
    assert not path.exists()


def test_processes_are_written_where_they_are_asked_for(tmp_path: Path) -> None:
    """So many, and without being asked none."""
    what = record()
    what.snapshot.processes = {"gpu.0": (DeviceProcess(7, "compute", 5), DeviceProcess(8, "compute", 6))}
    for most, pids in ((0, []), (1, ["8"])):
        with exporting(TextfileExporter(tmp_path / "accel.prom", processes=most)) as exporter:
            exporter.export(what)
            written = (tmp_path / "accel.prom").read_text()
            assert re.findall(r'^accel_process_memory_bytes\{.*pid="(\d+)"', written, re.MULTILINE) == pids
