"""Trackers with their real clients, offline: what their own stores hold after an exporter has logged into them."""

from __future__ import annotations

import json
import os
import shlex
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from benchmarks import environments
from tests.exporters.test_wandb_program import assert_in_the_system_stream, ran
from tests.frameworks.programs import ROOT, Ended, run_program
from tests.records import LABELS, record
from tests.simulators.nvml import NvmlSimulator

OFFLINE = {"CLEARML_OFFLINE_MODE": "1", "SWANLAB_MODE": "offline", "AIM_UI_TELEMETRY_ENABLED": "0"}
OURS = {
    "trackio": "trackio:?project=hw&run_name=node-1",
    "swanlab": "swanlab:?project=hw&run_name=node-1&mode=offline&directory=runs",
    "aim": "aim:?experiment=hw",
    "clearml": "clearml:?project=hw&task_name=node-1",
}
NAMES = {
    "trackio": ("gpu.0.powerWatts", "loss", "accuracy"),
    "swanlab": ("system/gpu.0.powerWatts", "loss", "accuracy"),
    "aim": ("system:gpu.0.powerWatts", "loss", "accuracy"),
    "clearml": ("gpu.0/powerWatts", "training/loss", "own/accuracy"),
}
"""By tracker, how it calls a reading, what the program told the monitor, and what the program logged itself."""


def stored(folder: Path, tracker: str) -> dict[str, Any]:
    """What the tracker's store holds: by name, steps and values; and the labels."""
    done = succeeded(run_program([sys.executable, "-m", "tests.frameworks.trackers.stored", tracker], folder, **environment(folder)))
    document = json.loads(done.out.splitlines()[-1])
    found: dict[str, list[tuple[int | None, float]]] = {}
    for name, step, value in document["rows"]:
        found.setdefault(name, []).append((step, value))
    return {"values": found, "labels": document["labels"]}


def environment(folder: Path) -> dict[str, str]:
    """No network, and each tracker's files below the folder."""
    return {**OFFLINE, "TRACKIO_DIR": str(folder / "trackio"), "PYTHONDONTWRITEBYTECODE": "1"}


def succeeded(ended: Ended) -> Ended:
    assert ended.status == 0, ended.said
    return ended


def logged(folder: Path, tracker: str, *exporter: str) -> dict[str, Any]:
    """What is stored after the program has run."""
    succeeded(run_program([sys.executable, "-m", "tests.frameworks.trackers.program", tracker, *exporter], folder, **environment(folder)))
    return stored(folder, tracker)


@pytest.mark.parametrize("tracker", OURS)
def test_a_run_of_ours_holds_every_metric_and_what_was_logged_and_labels(tmp_path: Path, tracker: str) -> None:
    """Each under its name, readings at whole seconds and the program's numbers at its steps; what is missing stays absent."""
    found = logged(tmp_path, tracker, OURS[tracker])
    power, loss, _ = NAMES[tracker]
    ((step, watts),) = found["values"][power]
    assert watts == 300.0 and (step is None if tracker == "trackio" else step in range(30))
    assert found["values"][loss] == [(7, 0.25)]
    assert {name: found["labels"][name] for name in LABELS} == LABELS
    before = power.removesuffix("gpu.0.powerWatts").removesuffix("gpu.0/powerWatts")
    values = {name.removeprefix(before).replace("/", ".", 1): rows for name, rows in found["values"].items() if name.startswith(before)}
    measured = record().snapshot.metrics
    assert {key for key in measured if key.startswith("gpu.")} == {key for key in values if key.startswith("gpu.")}
    assert all(values[key][0][1] == value for key, value in measured.items() if key.startswith("gpu."))
    assert not [name for name in found["values"] if "gpu.1" in name and "fanSpeed" in name]


@pytest.mark.parametrize("tracker", OURS)
def test_the_programs_own_run_is_joined_and_goes_on(tmp_path: Path, tracker: str) -> None:
    """Its numbers stand at its steps, those after the exporter's end too; there is no second run, and no label in its configuration."""
    found = logged(tmp_path, tracker)
    power, loss, accuracy = NAMES[tracker]
    assert found["values"][accuracy] == [(1, 0.5), (2, 0.75), (3, 1.0)]
    assert [value for _, value in found["values"][power]] == [300.0]
    assert found["values"][loss] == [(7, 0.25)]
    assert not set(LABELS) & set(found["labels"])


def test_what_clearml_would_make_zero_is_left_out(tmp_path: Path) -> None:
    """A loss that has gone has no point, and what was logged beside it has one."""
    program = """
    from accelmetrics.exporters.registry import create
    from accelmetrics.schemas.record import Step
    from tests.records import record
    taken = record(steps=False)
    step = Step(taken.snapshot.time_ns, 3, {"loss": float("nan"), "norm": float("inf"), "rate": 0.5})
    exporter = create("clearml")
    exporter.open()
    exporter.export(taken._replace(steps=(step,)))
    exporter.close()
    """
    succeeded(run_program([sys.executable, "-c", textwrap.dedent(program)], tmp_path, **environment(tmp_path)))
    values = stored(tmp_path, "clearml")["values"]
    assert {name: rows for name, rows in values.items() if name.startswith("training/")} == {"training/rate": [(3, 0.5)]}


def test_a_task_of_clearml_leaves_the_program_alone(tmp_path: Path) -> None:
    """Its random numbers go on as it seeded them, later tasks of its own seed them as it chose, git is not asked about its repository."""
    program = """
    import numpy
    from clearml import Task
    from accelmetrics.exporters.registry import create
    numpy.random.seed(7)
    Task.set_random_seed(11)
    before, exporter = numpy.random.get_state(), create("clearml")
    exporter.open()
    exporter.close()
    numpy.testing.assert_equal(numpy.random.get_state(), before)
    assert Task._random_seed == 11
    """
    git = tmp_path / "git"
    git.write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\n")
    git.chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    succeeded(run_program([sys.executable, "-c", textwrap.dedent(program)], tmp_path, **environment(tmp_path), **path))
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize("tracker", OURS)
def test_the_command_on_its_page_records(tmp_path: Path, tracker: str) -> None:
    """A monitor with an exporter of its own, from its start to its end: each reading is in the tracker's store, and the run is finished."""
    page = (ROOT / "docs" / "exporters.md").read_text(encoding="utf-8")
    (words,) = (line for line in page.splitlines() if line.startswith(f'accelmetrics record --exporter "{tracker}:'))
    command = [*shlex.split(words.replace("/data/aim", "."))[1:], "--no-console", "--interval", "1", "--duration", "10"]
    with NvmlSimulator(gpus=2) as simulator:
        succeeded(
            run_program([sys.executable, "-m", "accelmetrics", *command], tmp_path, **environment(tmp_path), **simulator.environment())
        )
    values = stored(tmp_path, tracker)["values"]
    assert len(values[NAMES[tracker][0]]) >= 2, "the first and the last"
    assert len({name for name in values if name.endswith("powerWatts")}) == 2


@pytest.mark.parametrize("release", ["0.19.11", "0.24.2"])
def test_older_releases_of_wandb_have_the_system_stream(tmp_path: Path, release: str) -> None:
    """Each in an environment of its own; the newest is tested in `tests/exporters/test_wandb_program.py`."""
    python = environments.python(f"wandb-{release}-venv", (f"wandb=={release}", "psutil", "pydantic<3"))
    assert_in_the_system_stream(ran(tmp_path / "run", "explicit", "wandb:?stream=system", python=python))
