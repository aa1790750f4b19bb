"""The pair of files: exactly the fields, whole lines, nothing twice."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from accelmetrics.exporters.files import LineFile
from accelmetrics.exporters.training_files import TrainingFilesExporter
from accelmetrics.schemas.errors import DocumentError, InvalidOptionError
from accelmetrics.schemas.record import Record, Step
from tests.cli.shell import REPOSITORY, environment
from tests.dialects.scenes import GPU_0, nvidia, record, step
from tests.support.exporting import export, exporting

GPU_FIELDS = [
    *("timestamp", "gpu_index", "utilization_percent", "memory_used_mb", "memory_total_mb", "memory_percent", "temperature_celsius"),
    *("power_draw_watts", "fan_speed_percent"),
]
TRAINING_FIELDS = [
    *("timestamp", "step", "epoch", "loss", "learning_rate", "gradient_norm", "throughput_samples_per_sec"),
    *("memory_allocated_mb", "memory_reserved_mb"),
]


def lines(path: Path) -> list[dict[str, object]]:
    """What a file holds, each line whole."""
    text = path.read_text(encoding="ascii")
    assert not text or text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def next_descriptor() -> int:
    """The lowest number that is free: it rises when files stay open."""
    descriptor = os.open(os.devnull, os.O_RDONLY)
    os.close(descriptor)
    return descriptor


def one(*steps: Step) -> Record:
    """Two GPUs, one of which says nothing, and what was logged."""
    return record({nvidia(0): GPU_0, nvidia(1): {}}, {"torch.0.memoryAllocatedBytes": 2**30}, steps)


def test_a_pair_of_files_with_exactly_the_fields(tmp_path: Path) -> None:
    """Names with the time of opening, the directory made; null where a value is absent."""
    with exporting(TrainingFilesExporter(str(tmp_path / "logs" / "run"))) as exporter:
        gpus, steps = exporter.paths
        exporter.export(one(step(1, loss=0.5, samples_per_second=12.5), step(2, loss=0.25)))
        exporter.export(one())
    stamp = re.fullmatch(r"gpu_metrics_(\d{8}_\d{6})\.jsonl", gpus.name)
    assert stamp is not None
    assert steps.name == f"training_metrics_{stamp[1]}.jsonl"
    assert sorted(path.name for path in (tmp_path / "logs" / "run").iterdir()) == [gpus.name, steps.name]
    rows = lines(gpus)
    assert [list(row) for row in rows] == [GPU_FIELDS] * 4
    assert [row["gpu_index"] for row in rows] == [0, 1, 0, 1]
    assert (rows[0]["power_draw_watts"], rows[1]["power_draw_watts"]) == (300.25, None)
    logged = lines(steps)
    assert [list(row) for row in logged] == [TRAINING_FIELDS] * 2
    assert [(row["step"], row["loss"], row["throughput_samples_per_sec"]) for row in logged] == [(1, 0.5, 12.5), (2, 0.25, None)]
    assert (logged[0]["memory_allocated_mb"], logged[0]["memory_reserved_mb"]) == (1024.0, None)


def test_a_record_that_is_offered_again_is_there_once(tmp_path: Path) -> None:
    """As after an error in the other of the two files."""
    with exporting(TrainingFilesExporter(tmp_path)) as exporter:
        same = one(step(1, loss=0.5))
        for _ in range(3):
            exporter.export(same)
        exporter.flush()
        assert [len(lines(path)) for path in exporter.paths] == [2, 1]


def test_steps_that_come_with_the_same_reading(tmp_path: Path) -> None:
    """When no last reading comes, what was logged is delivered with the one before: its devices are there once."""
    with exporting(TrainingFilesExporter(tmp_path)) as exporter:
        before = one(step(1, loss=0.5))
        exporter.export(before)
        exporter.export(before._replace(steps=(step(2, loss=0.25),)))
        exporter.flush()
        assert [len(lines(path)) for path in exporter.paths] == [2, 2]


def test_a_line_a_step_and_none_without_a_number(tmp_path: Path) -> None:
    """Frameworks log a step in several calls, some steps with an epoch alone or without any number of lines; names differ."""
    others = step(3, **{"train/loss": 0.125, "lr": 1e-3, "gradient_norm": 2.0, "throughput": 64.0})
    with exporting(TrainingFilesExporter(tmp_path)) as exporter:
        _, path = exporter.paths
        exporter.export(one(step(1, tokens=4096, epoch=0.25), step(2, epoch=0.5)))
        exporter.export(one(step(2, loss=0.25)))  # with the next reading
        exporter.export(one())
        exporter.export(one(step(2, lr=1e-4), others, step(4, tokens=4096)))
        exporter.export(one(step(5, epoch=0.75)))
    assert [(row["step"], row["epoch"], row["loss"]) for row in lines(path)] == [(2, 0.5, 0.25), (3, None, 0.125)]
    first, last = lines(path)
    assert first["learning_rate"] == 1e-4
    assert (last["learning_rate"], last["gradient_norm"], last["throughput_samples_per_sec"]) == (1e-3, 2.0, 64.0)


_LIMITED = """
import pathlib, resource, signal, sys
from accelmetrics.exporters.training_files import TrainingFilesExporter
from tests.exporters.test_training_files import lines, one
from tests.dialects.scenes import step

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
exporter = TrainingFilesExporter(sys.argv[1])
exporter.open()
exporter.export(one(step(1, loss=0.5)))
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, most))
large = one(*(step(number, loss=0.5) for number in range(2, 102)))
for _ in range(3):
    try:
        exporter.export(large)
    except OSError as error:
        print(error.errno, [len(lines(path)) for path in exporter.paths])
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
exporter.export(large)
exporter.close()
"""


def test_a_disk_that_takes_no_more(tmp_path: Path) -> None:
    """A file that cannot be written stays as it was, whole, and the other one has nothing twice; with room again all is there."""
    command = [sys.executable, "-c", _LIMITED, str(tmp_path)]
    done = subprocess.run(command, env=environment(), cwd=REPOSITORY, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{errno.EFBIG} [4, 0]"] * 3
    gpus, steps = sorted(tmp_path.iterdir())
    assert len(lines(gpus)) == 4
    assert [row["step"] for row in lines(steps)] == list(range(1, 102))


_ENDLESS = """
import itertools, sys
from accelmetrics.exporters.training_files import TrainingFilesExporter
from tests.exporters.test_training_files import one
from tests.dialects.scenes import step

exporter = TrainingFilesExporter(sys.argv[1])
exporter.open()
for number in itertools.count():
    exporter.export(one(step(number, loss=0.5)))
    if number == 50:
        print("written", flush=True)
"""


def test_killed_in_the_middle(tmp_path: Path) -> None:
    """At most the last line is cut: everything before it reads, and no reading is missing among it."""
    command = [sys.executable, "-c", _ENDLESS, str(tmp_path)]
    child = subprocess.Popen(command, env=environment(), cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == "written\n"
    child.send_signal(signal.SIGKILL)
    child.wait(10)
    _, steps = sorted(tmp_path.iterdir())
    whole = steps.read_text().rpartition("\n")[0].splitlines()
    numbers = [json.loads(line)["step"] for line in whole]
    assert len(numbers) >= 50
    assert numbers == list(range(len(numbers)))


def test_opened_again_it_goes_on(tmp_path: Path) -> None:
    """In a new pair, also within the same second; nothing that was there is lost."""
    exporter = TrainingFilesExporter(tmp_path, fsync_every=0)
    for _ in range(2):
        export(exporter, one(step(1, loss=0.5)))
        exporter.close()
    assert exporter.paths == ()
    assert [len(lines(path)) for path in tmp_path.glob("training_metrics_*.jsonl")] == [1, 1]


def test_two_processes_share_no_file(tmp_path: Path) -> None:
    """Several ranks of a job, opened within one second, have a pair each, and both names of a pair are alike."""
    exporters = [TrainingFilesExporter(tmp_path) for _ in range(4)]
    for exporter in exporters:
        exporter.open()
    pairs = [tuple(path.name.partition("_metrics_")[2] for path in exporter.paths) for exporter in exporters]
    for exporter in exporters:
        exporter.close()
    assert len(set(pairs)) == 4
    assert all(first == second for first, second in pairs)


def test_a_second_file_that_cannot_be_made_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trying again and again neither uses up descriptors nor fills the directory, whichever step fails."""
    exporter = TrainingFilesExporter(tmp_path)
    touch, acquire = Path.touch, LineFile._acquire

    def no_touch(path: Path, mode: int = 0o666, exist_ok: bool = True) -> None:
        if path.name.startswith("training"):
            raise OSError(errno.ENOSPC, "No space left on device")
        touch(path, mode, exist_ok)

    def no_lock(file: LineFile) -> None:
        acquire(file)
        if file.path.name.startswith("training"):
            raise OSError(errno.EIO, "Input/output error")

    before = next_descriptor()
    for owner, name, failing in ((Path, "touch", no_touch), (LineFile, "_acquire", no_lock)):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, failing)
            for _ in range(5):
                with pytest.raises(OSError, match=r"No space left|Input/output"):
                    exporter.open()
        assert list(tmp_path.iterdir()) == []
    assert next_descriptor() == before


def test_what_cannot_be(tmp_path: Path) -> None:
    """A file in place of the directory, a pace below 0, a number that JSON has no word for."""
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidOptionError, match="is not a directory"):
        TrainingFilesExporter(tmp_path / "file")
    with pytest.raises(InvalidOptionError, match="fsync_every is -1"):
        TrainingFilesExporter(tmp_path, fsync_every=-1)
    with exporting(TrainingFilesExporter(tmp_path)) as exporter:
        bad = one(step(1, loss=0.5))
        with pytest.raises(DocumentError, match="cannot be written as JSON"):
            exporter.export(bad._replace(snapshot=bad.snapshot.with_metrics({"gpu.0.temp": float("nan")})))
