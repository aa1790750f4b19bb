"""The metric logger for torchtune, beside a stand-in of its loggers' signatures and of its way to make components."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import accelmetrics
from accelmetrics.testing import FakeBackend
from tests.support.waiting import wait_for

MODULE = "accelmetrics.integrations.torchtune"


class Inner:
    """A metric logger that keeps what it is told."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.told: list[tuple[Any, ...]] = []

    def log(self, name: str, data: Any, step: int) -> None:
        """Take a number."""
        self.told.append((name, data, step))

    def log_dict(self, payload: Any, step: int) -> None:
        """Take a row."""
        self.told.append((payload, step))

    def log_config(self, config: Any) -> None:
        """Take a configuration."""
        self.told.append((config,))

    def close(self) -> None:
        """Note the end."""
        self.told.append(())


def instantiate(found: dict[str, Any]) -> Any:
    """As torchtune makes a component."""
    options = dict(found)
    assert options.pop("_component_") == "some.Inner"
    return Inner(**options)


@pytest.fixture
def logger(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A logger that has begun, made as a recipe makes it."""
    torchtune, omegaconf = ModuleType("torchtune"), ModuleType("omegaconf")
    torchtune.__dict__["config"] = SimpleNamespace(instantiate=instantiate)
    omegaconf.__dict__["OmegaConf"] = SimpleNamespace(create=dict)
    monkeypatch.setitem(sys.modules, "torchtune", torchtune)
    monkeypatch.setitem(sys.modules, "omegaconf", omegaconf)
    backend = FakeBackend(devices=1)
    backend.device(0).set(powerWatts=300.0)
    made = import_module(MODULE).DeviceMetricLogger("some.Inner", {"interval": 0.01, "backends": [backend]}, project="mine")
    wait_for(lambda: made.run.monitor.latest is not None)
    yield made
    made.close()
    sys.modules.pop(MODULE)


def test_rows_go_through_the_other_logger(logger: Any) -> None:
    """With the devices; what the recipe keeps is left as it is."""
    payload = {"loss": 0.5, "lr": 0.1}
    logger.log_dict(payload, step=3)
    logger.close()
    assert payload == {"loss": 0.5, "lr": 0.1}
    (row, step), end = logger._inner.told
    assert (row["loss"], row["system/gpu.0.powerWatts"], step, end) == (0.5, 300.0, 3, ())
    assert [(one.step, dict(one.values)) for one in logger.run.monitor.steps] == [(3, payload)]
    assert not logger.run.monitor.running


def test_the_rest_is_the_other_loggers(logger: Any) -> None:
    """Its options, single numbers and the configuration."""
    logger.log("loss", 0.5, step=3)
    logger.log_config("config")
    assert logger._inner.options == {"project": "mine"}
    assert logger._inner.told == [("loss", 0.5, 3), ("config",)]


def test_what_cannot_be_noted_is_told_once(logger: Any, caplog: pytest.LogCaptureFixture) -> None:
    """And logged as it is."""
    with caplog.at_level(logging.WARNING, "accelmetrics"):
        logger.log_dict({1: 0.5}, step=3)
        logger.log_dict({1: 0.5}, step=4)
    assert [row[1] for row, _ in logger._inner.told] == [0.5, 0.5]
    assert ["failed" in record.message for record in caplog.records].count(True) == 1


def test_wrong_options_are_told_where_it_is_made(logger: Any) -> None:
    """And not in the middle of the training; the other logger has not begun then."""
    with pytest.raises(accelmetrics.InvalidOptionError):
        import_module(MODULE).DeviceMetricLogger("none", {"interval": -1})
