"""Under gevent and eventlet, whenever they are switched on: readings are taken, files are written, and a stop ends."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from accelmetrics.schemas.recording import read_records
from tests.support.missing import MissingHere
from tests.support.programs import Program

PATCH = {"gevent": "from gevent import monkey; monkey.patch_all()", "eventlet": "import eventlet; eventlet.monkey_patch()"}
TEXT = """
    import sys, warnings
    warnings.simplefilter("ignore")  # eventlet's own, about its future
    FIRST
    import accelmetrics
    from accelmetrics.testing import FakeBackend
    accelmetrics.Sampler(backends=[FakeBackend(devices=1)]).close()
    THEN
    import logging, time
    logging.basicConfig(stream=sys.stdout, format="%(message)s")

    backend = FakeBackend(devices=1)
    backend.device(0).set(powerWatts=100.0)
    run = accelmetrics.training(0.01, ["jsonl:" + sys.argv[1]], backends=[backend])
    with run:
        step = 0
        while run.monitor.status.exporters[0].sent < 5:
            run.step(step, loss=0.5)
            step += 1
            time.sleep(0.001)
        row = run.row()
        with run.monitor.window("w") as window:
            time.sleep(0.05)
        assert window.summary["gpu.0.powerWatts"].mean == row["system/gpu.0.powerWatts"] == 100.0
        assert run.monitor.flush()
    status = run.monitor.status
    assert status.exporters[0].sent == status.ticks, status
    tell(step, status.ticks)
"""


@pytest.mark.parametrize("first", [True, False], ids=["before it is imported", "after it is imported"])
@pytest.mark.parametrize("library", PATCH)
def test_a_training_is_watched_as_any_other(library: str, first: bool, tmp_path: Path) -> None:
    if importlib.util.find_spec(library) is None:
        raise MissingHere(f"{library} is not installed: pip install {library}")
    path = tmp_path / "run.jsonl"
    text = TEXT.replace("FIRST", PATCH[library] if first else "").replace("THEN", "" if first else PATCH[library])
    with Program(text, str(path)) as program:
        steps, ticks = program.told()
        assert program.end() == 0, program.errors
        shared = "readings are not shared with other processes"
        assert program.output.count(shared) == len(program.output.splitlines()) == 1
    records = list(read_records(path))
    assert len(records) in (ticks, ticks + 1), "the last may have steps alone"
    assert [one.step for record in records for one in record.steps] == list(range(steps))


@pytest.mark.parametrize("library", PATCH)
def test_a_monitor_that_is_to_share_warns_once(library: str) -> None:
    if importlib.util.find_spec(library) is None:
        raise MissingHere(f"{library} is not installed: pip install {library}")
    text = f"""
    {PATCH[library]}
    import accelmetrics
    for _ in range(2):
        accelmetrics.Monitor(share="node", backends=["host"])
    """
    with Program(text) as program:
        assert program.end() == 0, program.errors
        assert program.errors.count("RuntimeWarning: accelmetrics: readings are not shared: gevent or eventlet") == 1
