"""What is typed to filter a list."""

from __future__ import annotations

import pytest

from accelmetrics.schemas.errors import InvalidOptionError, UnknownNameError
from accelmetrics.views.terminal.choices import DEVICE_FIELDS, PROCESS_FIELDS, Fields, filtered, parse_filter

ROW: Fields = {
    "pid": 48120.0,
    "user": "Ann",
    "program": "python",
    "device": "gpu.0,gpu.1",
    "gpu%": 93.0,
    "mem": 44.8,
    "cpu%": None,
    "type": "",
}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("", True),
        ("ann", True),
        ("bob", False),
        ("user=ann gpu%>0", True),
        ("user=ann gpu%>95", False),
        ("user!=ann", False),
        ("user=an", False),
        ("user~an", True),
        ("device=gpu.1", True),
        ("device=gpu.10", False),
        ("mem>=44.8GiB", True),
        ("gpu%<=93%", True),
        ("gpu%=93", True),
        ("pid=48120", True),
        ("pid!=48120", False),
        ("cpu%>0", False),
        ("cpu%<100", False),
        ("PYTHON", True),
    ],
)
def test_all_conditions_must_hold(text: str, holds: bool) -> None:
    assert filtered([ROW], text, PROCESS_FIELDS, lambda row: row) == [ROW] * holds


def test_a_field_that_does_not_exist_is_named_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="user"):
        parse_filter("usr=ann", PROCESS_FIELDS)


def test_only_numbers_are_compared_in_size() -> None:
    with pytest.raises(InvalidOptionError, match="not a number"):
        parse_filter("power>high", DEVICE_FIELDS)
