from __future__ import annotations

import pickle

import pytest

from accelmetrics.schemas import errors
from accelmetrics.schemas.errors import (
    AccelMetricsError,
    DocumentError,
    MissingDependencyError,
    Reason,
    SourceError,
    Unavailable,
    UnknownNameError,
)

ALL = [
    AccelMetricsError("lost", backend="nvidia", device="gpu.0", reason=Reason.DEVICE_LOST, advice="reset it"),
    UnknownNameError("backend", "nvidea", ["nvidia", "amd"]),
    errors.InvalidOptionError("interval must be positive, not -1"),
    MissingDependencyError("rich", "rich"),
    DocumentError("not a document"),
    SourceError(Reason.NO_PERMISSION, "may not", backend="host", device="gpu.1", advice="ask"),
    errors.DriverGoneError(Reason.DRIVER_UNAVAILABLE, "gone", backend="nvidia"),
    errors.PartitionRemovedError(Reason.DEVICE_LOST, "removed", backend="nvidia"),
]


def test_every_error_is_here() -> None:
    declared = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, AccelMetricsError)}
    assert {type(error) for error in ALL} == declared


@pytest.mark.parametrize("error", ALL, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_errors_pickle_with_all_they_carry(error: AccelMetricsError, protocol: int) -> None:
    again = pickle.loads(pickle.dumps(error, protocol))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_an_unknown_name_lists_the_known_and_suggests_the_nearest() -> None:
    text = str(UnknownNameError("backend", "nvidea", ["nvidia", "amd"]))
    assert text == "unknown backend 'nvidea'. Did you mean 'nvidia'? Known: nvidia, amd"
    assert str(UnknownNameError("device", "gpu.0", [])) == "unknown device 'gpu.0'. Known: none"


def test_a_missing_dependency_names_the_command() -> None:
    error = MissingDependencyError("rich", "rich")
    assert "pip install 'accelmetrics[rich]'" in str(error)
    assert error.advice == "pip install 'accelmetrics[rich]'"


def test_a_source_error_is_a_reason() -> None:
    assert SourceError(Reason.NO_PERMISSION, "may not").unavailable == Unavailable("no_permission", "may not")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UnknownNameError("key", "x", []), ValueError),
        (MissingDependencyError("rich", "rich"), ImportError),
        (DocumentError("x"), ValueError),
    ],
)
def test_errors_are_also_what_python_calls_them(error: AccelMetricsError, kind: type[Exception]) -> None:
    assert isinstance(error, kind)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://ada:pass@h:1/x is away", "http://***@h:1/x is away"),
        ("'http://ada:pa/s@s@h' is no address", "'http://***@h' is no address"),
        ("unknown target influx:https://token@h?db=x", "unknown target influx:https://***@h?db=x"),
        ("the address 'ada:pass@h:8125' is not HOST:PORT", "the address '***@h:8125' is not HOST:PORT"),
        ("write to ada@example.com at 12:30", "write to ada@example.com at 12:30"),
        ("gpu.0: lost: no answer", "gpu.0: lost: no answer"),
    ],
)
def test_no_error_repeats_a_password(text: str, shown: str) -> None:
    """Whatever address was typed."""
    error = errors.InvalidOptionError(text)
    assert (str(error), error.message, pickle.loads(pickle.dumps(error)).message) == (shown, shown, shown)


def test_what_variables_hold_that_are_secret_by_their_names_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short words excepted, which may be part of any other."""
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "correct horse")
    monkeypatch.setenv("SORT_KEY", "name")
    said = "name: key 0123456789abcdef was refused for 'correct horse' at http://a:b@h"
    assert errors.without_secrets(said) == "name: key *** was refused for '***' at http://***@h"


def test_reasons_are_the_agreed_ones() -> None:
    agreed = """not_supported no_permission device_lost driver_unavailable timed_out parse_error stale not_in_use suspended needs_interval
        driver_error reset_required invalid_value"""
    assert {str(reason) for reason in Reason} == set(agreed.split())
    assert str(Reason.TIMED_OUT) == f"{Reason.TIMED_OUT}" == "timed_out"
