"""The plug-in of verl, beside a stand-in of its tracking."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any, ClassVar

import pytest

import accelmetrics
from accelmetrics.integrations import training as runs
from accelmetrics.integrations.training import training
from accelmetrics.testing import FakeBackend
from tests.support.waiting import wait_for

ON = {"trainer": {"enable_gpu_monitoring": True, "gpu_monitor_interval": 0.01}}


class Tracking:
    """As verl has it since 0.6; what is logged stays here."""

    supported_backend: ClassVar = ["console", "file"]

    def __init__(self, project_name: str, experiment_name: str, default_backend: Any = "console", config: Any = None) -> None:
        for backend in [default_backend] if isinstance(default_backend, str) else default_backend:
            assert backend in self.supported_backend, f"{backend} is not supported"
        self.logged: list[tuple[dict[str, Any], int, Any]] = []
        self.ended: list[int] = []

    def log(self, data: dict[str, Any], step: int, backend: Any = None) -> None:
        self.logged.append((data, step, backend))

    def finish(self, exit_code: int = 0) -> None:
        self.ended.append(exit_code)


@pytest.fixture(params=["with finish", "without"])
def tracking(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The stand-in's class with the plug-in in it, in a release that has a ``finish`` and in an early one."""
    kind = type("Tracking", (), dict(Tracking.__dict__))
    if request.param == "without":
        del kind.finish  # type: ignore[attr-defined]
    for name in ("verl", "verl.utils", "verl.utils.tracking"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["verl.utils.tracking"].Tracking = kind  # type: ignore[attr-defined]
    gpu = FakeBackend(devices=1)
    gpu.device(0).set(powerWatts=300.0)
    monkeypatch.setattr(runs, "training", lambda **options: training(**{"backends": [gpu], "share": None, **options}))
    import_module("accelmetrics.integrations.verl")
    yield kind
    del sys.modules["accelmetrics.integrations.verl"]


def read(it: Any) -> Any:
    """The tracking's run, once it has a reading."""
    run = it._accelmetrics[0].run
    wait_for(lambda: run.monitor.latest is not None)
    return run


def test_rows_are_added_to_a_copy(tracking: Any) -> None:
    """With everything else as it was given; the trainer's numbers are the run's steps."""
    it = tracking("project", "experiment", ["file"], ON)
    run = read(it)
    data = {"actor/pg_loss": 0.5, "actor/grad_norm": 2.0, "perf/total_num_tokens": 100, "other": 1}
    it.log(data, 7, backend=["file"])
    it.log(data=data, step=8)
    if hasattr(it, "finish"):
        it.finish(exit_code=1)
        assert it.ended == [1]
    else:
        run.close()
    assert set(data) == {"actor/pg_loss", "actor/grad_norm", "perf/total_num_tokens", "other"}
    (first, step, backend), (second, *_) = it.logged
    assert (step, backend) == (7, ["file"])
    assert "system/gpu.0.powerWatts" in first and "system/gpu.0.powerWatts" in second and first.items() >= data.items()
    assert [(one.step, one.values["loss"], one.values["tokens"]) for one in run.monitor.steps] == [(7, 0.5, 100), (8, 0.5, 100)]
    assert not run.monitor.running


@pytest.mark.parametrize("config", [None, {}, {"trainer": {}}, {"trainer": None}, {"other": 1}, "text"])
def test_nothing_is_read_unless_asked_for(config: Any, tracking: Any) -> None:
    """Whatever is handed over as a configuration."""
    it = tracking("project", "experiment", "console", config)
    it.log({"loss": 1.0}, step=1)
    assert it.logged == [({"loss": 1.0}, 1, None)]
    assert not hasattr(it, "_accelmetrics")


def test_by_keyword_and_by_name(tracking: Any) -> None:
    """Keywords count more than the configuration."""
    assert hasattr(tracking("p", "e", enable_gpu_monitoring=True), "_accelmetrics")
    assert hasattr(tracking("p", "e", default_backend=["console", "accelmetrics"]), "_accelmetrics")
    assert not hasattr(tracking("p", "e", "console", ON, enable_gpu_monitoring=False), "_accelmetrics")
    assert tracking("p", "e", "console", ON, gpu_monitor_interval=3)._accelmetrics[0].run.monitor.interval == 3


@pytest.mark.parametrize("way", ["configuration", "keyword", "variable"])
def test_rows_in_the_names_of_monitors_made_for_verl(way: str, tracking: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By one option, which switches it on; none of our names beside them."""
    if way == "variable":
        monkeypatch.setenv("ACCELMETRICS_VERL", "verl")
    config = {"trainer": {"gpu_monitor_metrics": "verl"} if way == "configuration" else {}}
    it = tracking("p", "e", "console", config, **({"gpu_monitor_metrics": "verl"} if way == "keyword" else {}))
    run = read(it)
    it.log({"actor/pg_loss": 0.5}, step=7)
    run.close()
    assert it.logged == [({"actor/pg_loss": 0.5, "gpu_0_power_usage_w": 300.0}, 7, None)]


def test_metrics_of_the_program_s_choice(tracking: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A selection; 1 in the variable is the brief keys; what no metric has is told at the start."""
    with pytest.raises(accelmetrics.UnknownNameError, match="powerWats"):
        tracking("p", "e", gpu_monitor_metrics="powerWats")
    monkeypatch.setenv("ACCELMETRICS_VERL", "1")
    for options in ({}, {"gpu_monitor_metrics": ["powerWatts"]}):
        it = tracking("p", "e", **options)
        run = read(it)
        it.log({}, step=1)
        run.close()
        assert it.logged[0][0]["system/gpu.0.powerWatts"] == 300.0
    assert not hasattr(tracking("p", "e", enable_gpu_monitoring=False), "_accelmetrics")


def test_an_interval_without_the_switch_says_so(tracking: Any) -> None:
    """It is not taken for the switch."""
    with pytest.warns(RuntimeWarning, match=r"add \+trainer\.enable_gpu_monitoring=true"):
        it = tracking("p", "e", "console", {"trainer": {"gpu_monitor_interval": 2.0}})
    assert not hasattr(it, "_accelmetrics")


def test_what_cannot_be_used_is_told_at_the_start(tracking: Any) -> None:
    """Before anything of verl's is opened."""
    with pytest.raises(accelmetrics.InvalidOptionError, match="interval is 'soon'"):
        tracking("p", "e", "console", {"trainer": {"enable_gpu_monitoring": True, "gpu_monitor_interval": "soon"}})
    with pytest.raises(AssertionError, match="clay is not supported"):
        tracking("p", "e", "clay", ON)


def test_loading_it_twice_replaces_once(tracking: Any) -> None:
    """As releases do that find the entry point and are told the variable too."""
    del sys.modules["accelmetrics.integrations.verl"]
    import_module("accelmetrics.integrations.verl")
    it = tracking("project", "experiment", "console", ON)
    read(it)
    it.log({}, step=1)
    assert len(it.logged) == 1
    assert tracking.supported_backend.count("accelmetrics") == 1


class Fleet:
    """As the one of Ray: rows of two nodes."""

    closed: ClassVar[list[float]] = []

    def __init__(self, interval: float, run: Any) -> None:
        self.interval, self.run = interval, run

    def start(self) -> Fleet:
        return self

    def row(self) -> dict[str, float]:
        return {**self.run.row(), "system/node-1/gpu.0.powerWatts": 200.0}

    def close(self) -> None:
        self.closed.append(self.interval)


@pytest.mark.parametrize("connected", [True, False])
def test_rows_of_all_nodes_of_a_cluster(connected: bool, tracking: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the program is connected to one; it ends with the tracking."""
    ray, ours = ModuleType("ray"), ModuleType("accelmetrics.integrations.ray")
    ray.__dict__.update(is_initialized=lambda: connected)
    ours.__dict__.update(Fleet=Fleet)
    for module in (ray, ours):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(Fleet, "closed", [])
    it = tracking("project", "experiment", config=ON)
    read(it)
    it.log({"loss": 1.0}, 1)
    assert "system/gpu.0.powerWatts" in it.logged[0][0]
    assert ("system/node-1/gpu.0.powerWatts" in it.logged[0][0]) == connected
    del it
    gc.collect()
    assert Fleet.closed == ([0.01] if connected else [])


def test_a_ray_that_cannot_be_used_is_told(tracking: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And rows are of this node alone."""
    ray = ModuleType("ray")
    ray.__dict__.update(is_initialized=lambda: True)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "accelmetrics.integrations.ray", None)
    with pytest.warns(RuntimeWarning, match="only the devices of this node"):
        it = tracking("project", "experiment", config=ON)
    read(it)
    it.log({"loss": 1.0}, 1)
    assert "system/gpu.0.powerWatts" in it.logged[0][0]
