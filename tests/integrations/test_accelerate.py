"""The tracker for accelerate, beside a stand-in of its trackers' signatures."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

from tests.monitor.watching import gpus
from tests.support.waiting import wait_for

gpu = partial(gpus, 1, powerWatts=300.0)

MODULE = "accelmetrics.integrations.accelerate"


class GeneralTracker:
    """As accelerate has it: it looks whether its subclass is whole."""

    def __init__(self) -> None:
        assert {"name", "requires_logging_directory", "tracker"} <= set(dir(self))


@pytest.fixture
def tracking(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The stand-in's module, which knows trackers by name."""
    package, module = ModuleType("accelerate"), ModuleType("accelerate.tracking")
    known: dict[str, Any] = {}
    module.__dict__.update(GeneralTracker=GeneralTracker, LOGGER_TYPE_TO_CLASS=known)
    module.__dict__["register_tracker_class"] = lambda kind: known.update({kind.name: kind})
    package.__dict__["tracking"] = module
    monkeypatch.setitem(sys.modules, "accelerate", package)
    monkeypatch.setitem(sys.modules, "accelerate.tracking", module)
    yield module
    sys.modules.pop(MODULE, None)


@pytest.fixture
def tracker(tracking: Any) -> Iterator[Any]:
    """A tracker that has begun, made as ``init_trackers`` makes it."""
    import_module(MODULE)
    made = tracking.LOGGER_TYPE_TO_CLASS["accelmetrics"]("project", interval=0.01, backends=[gpu()])
    made.start()
    wait_for(lambda: made.run.monitor.latest is not None)
    yield made
    made.finish()
    assert not made.run.monitor.running


def test_the_row_is_added_for_those_behind_it(tracker: Any) -> None:
    """And the row's own numbers are a step."""
    values = {"loss": 0.5, "step": 5, "phase": "train", "parts": {"a": 1.0}}
    tracker.log(values, step=5)
    assert values["system/gpu.0.powerWatts"] == 300.0
    tracker.finish()
    assert [(step.step, dict(step.values)) for step in tracker.run.monitor.steps] == [(5, {"loss": 0.5})]


def test_a_second_row_of_a_step_is_left_alone(tracker: Any) -> None:
    """Trackers keep the last of a name: a row of a moment would replace that of the whole step."""
    first, second, third = ({"loss": 0.5}, {"eval_loss": 0.4}, {"loss": 0.3})
    for step, values in ((5, first), (5, second), (6, third)):
        tracker.log(values, step=step)
    assert [any(name.startswith("system/") for name in values) for values in (first, second, third)] == [True, False, True]


def test_without_steps_each_row_has_one(tracker: Any) -> None:
    """Its step is the tracker's own count then."""
    first: dict[str, Any] = {"loss": 0.5}
    second: dict[str, Any] = {"loss": 0.5}
    tracker.log(first)
    tracker.log(second)
    assert {"system/readings"} <= first.keys() & second.keys()


def test_a_dictionary_that_is_logged_again_has_nothing_old(tracker: Any) -> None:
    """The program reuses it."""
    values: dict[str, Any] = {"loss": 0.5}
    tracker.log(values, step=1)
    values["system/of the program"] = 1.0
    tracker._hook.row = lambda: {"system/readings": 0}
    tracker.log(values, step=2)
    assert values == {"loss": 0.5, "system/of the program": 1.0, "system/readings": 0}


def test_what_cannot_be_added_to_is_told_once(tracker: Any, caplog: pytest.LogCaptureFixture) -> None:
    """And the others log what there is."""
    with caplog.at_level(logging.WARNING, "accelmetrics"):
        tracker.log(None, step=1)
        tracker.log(None, step=2)
    assert ["failed" in record.message for record in caplog.records].count(True) == 1


def test_the_names_of_accelerate(tracker: Any) -> None:
    """Its attributes, and the run behind ``get_tracker``."""
    assert (tracker.name, tracker.requires_logging_directory, tracker.main_process_only) == ("accelmetrics", False, True)
    assert tracker.tracker is tracker.run


def test_a_release_without_names_takes_the_object(tracking: Any) -> None:
    """``register_tracker_class`` is younger than trackers are."""
    del tracking.register_tracker_class
    assert import_module(MODULE).DeviceTracker(interval=2.0).run.monitor.interval == 2.0
    assert not tracking.LOGGER_TYPE_TO_CLASS
