"""Event files as TensorBoard's own reader takes them."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from accelmetrics.exporters.registry import create
from accelmetrics.exporters.tensorboard import TensorboardExporter
from accelmetrics.exporters.tracker import tag
from accelmetrics.schemas.record import Record, Step
from accelmetrics.schemas.snapshot import Snapshot
from tests.exporters.files_tools import failing, largest_file
from tests.records import record
from tests.support.exporting import export, exporting


def reader(directory: Path) -> Any:
    """TensorBoard's reader, with all that it kept of a run."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(directory), size_guidance={"scalars": 0, "tensors": 0}).Reload()


def at(second: float, value: float, *steps: Step) -> Record:
    """A record of one metric."""
    return Record(Snapshot(int(second * 1e9), "node-1", {"gpu.0.powerWatts": value}), steps=steps)


def test_scalars_steps_and_labels_are_read_back(tmp_path: Path) -> None:
    """Every metric at its snapshot's time, steps under their own names and numbers, labels as a text."""
    exporter = create(f"tensorboard:{tmp_path}?run=node-1")
    taken = record()
    with exporting(exporter):
        exporter.export(taken)
        exporter.flush()
        found = reader(tmp_path / "node-1")
        measured = {tag(key): value for key, value in taken.snapshot.metrics.items()}
        assert measured.keys() <= set(found.Tags()["scalars"])
        for name, value in measured.items():
            (event,) = found.Scalars(name)
            assert (
                event.value == pytest.approx(value, rel=1e-6)
                and event.wall_time == taken.snapshot.time_ns / 1e9
                and event.step in range(30)
            )
        assert "gpu.1/fanSpeed" not in found.Tags()["scalars"], "what is missing stays absent"
        (loss,) = found.Scalars("loss")
        assert (loss.step, loss.value) == (7, 0.25)
        assert found.Scalars("monitor/ticks")[0].value == 10
        (text,) = found.Tensors("accelmetrics/labels")
        assert b"| run_id | 20260101-abc |" in text.tensor_proto.string_val[0]


@pytest.mark.parametrize(
    ("dialect", "expected"),
    [("verl", "verl/gpu_0_power_usage_w"), ("nvidia-smi", "gpu.0/power.draw"), ("wandb-docs", "gpu.0/powerWatts")],
)
def test_another_monitors_names_are_grouped_by_device_or_by_their_dialect(tmp_path: Path, dialect: str, expected: str) -> None:
    """Where a name says which device it is of, in our way, it stands with that device."""
    export(create(f"tensorboard:{tmp_path}?dialect={dialect}"), record())
    found = reader(tmp_path / "system")
    assert found.Scalars(expected)[0].value == 300.0
    assert found.Scalars("monitor/ticks")[0].value == 10


def test_a_file_that_grows_is_followed_and_a_restart_goes_on(tmp_path: Path) -> None:
    """A reader that watches sees each record at once; after a restart the same run goes on to the right."""
    exporter, now = TensorboardExporter(str(tmp_path)), time.time()
    with exporting(exporter):
        found = reader(tmp_path / "system")
        for number in range(2):
            exporter.export(at(now + 5 * number, 100.0 + number, Step(int(now * 1e9), None, {"loss": 0.5})))
            assert [event.value for event in found.Reload().Scalars("gpu.0/powerWatts")] == [100.0 + index for index in range(number + 1)]
    export(exporter, at(now + 60, 200.0))
    events = found.Reload().Scalars("gpu.0/powerWatts")
    assert [event.value for event in events] == [100.0, 101.0, 200.0]
    assert [event.step - events[0].step for event in events] == [0, 5, 60]
    assert [event.step for event in found.Scalars("loss")] == [events[0].step] * 2, "a step without a number stands at its second"


def test_a_full_disk_loses_nothing_and_leaves_no_torn_record(tmp_path: Path) -> None:
    """A record that does not fit is taken back whole and can be offered again; what follows it is readable."""
    code = (
        "import resource, sys\n"
        "from accelmetrics.exporters.tensorboard import TensorboardExporter\n"
        "from tests.exporters.test_tensorboard import at\n"
        "one = TensorboardExporter(sys.argv[1]); one.open(); one.export(at(1e9, 1.0))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (one._path.stat().st_size + 20, resource.RLIM_INFINITY))\n"
        "try:\n one.export(at(1e9 + 1, 2.0))\nexcept OSError as error:\n print('full:', error.errno)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\n"
        "one.export(at(1e9 + 1, 2.0)); one.export(at(1e9 + 2, 3.0)); one.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout.startswith("full: "), done.stderr
    assert [event.value for event in reader(tmp_path / "system").Scalars("gpu.0/powerWatts")] == [1.0, 2.0, 3.0]


def test_what_cannot_be_taken_back_is_left_for_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a torn record cannot be removed, the error is the disk's, and the record goes to a file of its own."""
    now = time.time()
    exporter, place = TensorboardExporter(str(tmp_path)), tmp_path / "system"
    with exporting(exporter):
        exporter.export(at(now, 1.0))
        (first,) = place.iterdir()

        with monkeypatch.context() as patch, largest_file(first.stat().st_size + 20):
            patch.setattr(os, "ftruncate", failing(errno.EIO))
            with pytest.raises(OSError, match="File too large"):
                exporter.export(at(now + 1, 2.0))
        exporter.export(at(now + 1, 2.0))
    assert len(list(place.iterdir())) == 2
    assert [event.value for event in reader(place).Scalars("gpu.0/powerWatts")] == [1.0, 2.0]


@pytest.mark.parametrize("gone", ["file", "directory", "moved"])
def test_a_file_that_somebody_takes_away_is_begun_anew(tmp_path: Path, gone: str) -> None:
    """The next record, its labels with it, goes to another file in the same place; what was moved is kept where it is."""
    exporter, place = TensorboardExporter(str(tmp_path / "log")), tmp_path / "log" / "system"
    with exporting(exporter):
        exporter.export(at(1e9, 1.0)._replace(labels={"team": "a"}))
        if gone == "file":
            next(place.iterdir()).unlink()
        elif gone == "directory":
            shutil.rmtree(tmp_path / "log")
        else:
            place.rename(tmp_path / "away")
        for number in (2.0, 3.0):
            exporter.export(at(1e9 + number, number)._replace(labels={"team": "a"}))
    found = reader(place)
    assert [event.value for event in found.Scalars("gpu.0/powerWatts")] == [2.0, 3.0]
    assert len(found.Tensors("accelmetrics/labels")) == 1
    if gone == "moved":
        assert [event.value for event in reader(tmp_path / "away").Scalars("gpu.0/powerWatts")] == [1.0]


def test_no_room_for_another_file_leaves_none(tmp_path: Path) -> None:
    """A file that cannot be begun on a full disk is not left behind, nor open; the record is taken when there is room."""
    exporter, place = TensorboardExporter(str(tmp_path)), tmp_path / "system"
    with exporting(exporter):
        next(place.iterdir()).unlink()
        descriptors = psutil.Process().num_fds()
        for _ in range(3):
            with largest_file(10), pytest.raises(OSError, match="File too large"):
                exporter.export(at(1e9, 1.0))
        assert list(place.iterdir()) == [] and psutil.Process().num_fds() < descriptors
        exporter.export(at(1e9, 1.0))
    assert [event.value for event in reader(place).Scalars("gpu.0/powerWatts")] == [1.0]


def test_a_killed_program_leaves_what_it_wrote(tmp_path: Path) -> None:
    """`kill -9` loses nothing whose export had ended."""
    code = (
        "import os, signal, sys\nfrom accelmetrics.exporters.tensorboard import TensorboardExporter\n"
        "from tests.exporters.test_tensorboard import at\n"
        "one = TensorboardExporter(sys.argv[1]); one.open()\nfor number in range(5): one.export(at(1e9 + number, number))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == -9, done.stderr
    assert [event.value for event in reader(tmp_path / "system").Scalars("gpu.0/powerWatts")] == [0, 1, 2, 3, 4]


def test_no_framework_is_loaded(tmp_path: Path) -> None:
    """Writing event files needs neither TensorFlow nor PyTorch, and does not load them where they are installed."""
    for framework in ("tensorflow", "torch"):
        (tmp_path / f"{framework}.py").write_text("raise SystemExit('loaded')")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from accelmetrics.exporters.tensorboard import TensorboardExporter\nfrom tests.records import record\n"
        "one = TensorboardExporter(sys.argv[1]); one.open(); one.export(record()); one.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "log")], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr


def test_a_directory_that_cannot_be_is_passing(tmp_path: Path) -> None:
    """A file was put where the directory should be: an OSError, and closing is quiet."""
    exporter = TensorboardExporter(str(tmp_path / "log"))
    (tmp_path / "log").write_text("")
    with pytest.raises(OSError, match="log"):
        exporter.open()
    exporter.close()


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("gpu.0.powerWatts", "gpu.0/powerWatts"),
        ("gpu.process.0.temp", "gpu.process.0/temp"),
        ("gpu.12.mig.1.smActive", "gpu.12.mig.1/smActive"),
        ("gpu.0.nvlink.3.state", "gpu.0/nvlink.3.state"),
        ("torch.0.memoryAllocatedBytes", "torch.0/memoryAllocatedBytes"),
        ("cpu", "host/cpu"),
        ("disk./.usageGB", "host/disk./.usageGB"),
        ("monitor.exporter.jsonl.sent", "monitor/exporter.jsonl.sent"),
    ],
)
def test_a_tag_groups_by_device(key: str, expected: str) -> None:
    """TensorBoard makes a section of what stands before the first slash."""
    assert tag(key) == expected


def test_what_tensorboard_has_no_room_for(tmp_path: Path) -> None:
    """Text that is no UTF-8 is written with its escape, and a step beyond 64 bits stands at its second."""
    with exporting(TensorboardExporter(str(tmp_path))) as exporter:
        steps = tuple(Step(int(1e18), number, {"loss\udce9": 0.5}) for number in (2**70, -(2**63) - 1, 2**63 - 1))
        taken = at(1e9, 1.0, *steps)
        exporter.export(taken._replace(labels={"caf\udce9": "\ud800"}, snapshot=taken.snapshot.with_metrics({"disk./\udce9.usageGB": 2.0})))
    found = reader(tmp_path / "system")
    assert [event.value for event in found.Scalars("host/disk./\\udce9.usageGB")] == [2.0]
    assert sorted(event.step for event in found.Scalars("loss\\udce9")) == [0, 0, 2**63 - 1]
    assert b"| caf\\\\udce9 | \\\\ud800 |" in found.Tensors("accelmetrics/labels")[0].tensor_proto.string_val[0]


def test_it_stays_where_it_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path means the directory of the moment when the exporter is made; a tilde means home."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    exporters = [TensorboardExporter("log"), TensorboardExporter("~/log")]
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for exporter in exporters:
        exporter.open()
        exporter.close()
    assert [len(list((tmp_path / place / "system").iterdir())) for place in ("log", "home/log")] == [1, 1]
