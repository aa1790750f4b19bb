"""The table, and any listing that the module may give."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, strategies as st

from accelmetrics.backends.contract import ReadOptions
from accelmetrics.backends.graphcore import FIELDS, IDENTITY
from accelmetrics.backends.kit import DeviceSample, PolledBackend
from accelmetrics.backends.registry import load
from accelmetrics.schemas.catalogue import expected_names
from accelmetrics.schemas.errors import Reason, SourceError
from tests.simulators.graphcore import c600, m2000


def listing(devices: list[dict[str, Any]]) -> PolledBackend:
    """The table over devices that are given."""
    return PolledBackend(
        "graphcore",
        kind="ipu",
        source="gcipuinfo",
        connect=lambda: lambda: map(DeviceSample, devices),
        fields=FIELDS,
        identity=IDENTITY,
        exclusive=True,
    )


def test_the_table_has_every_name_that_the_catalogue_promises() -> None:
    assert sorted(load("graphcore").coverage().devices) == sorted(expected_names("graphcore"))


@pytest.mark.parametrize("device", [c600(0), m2000(1), {}], ids=["card", "machine", "nothing"])
def test_every_name_has_a_value_or_a_reason(device: dict[str, str]) -> None:
    reading = listing([device]).open().reader(ReadOptions(1)).read(0, [])
    names = [name for block in reading.blocks for name in block.names]
    assert sorted([*names, *reading.unavailable]) == sorted(expected_names("graphcore"))


@given(st.lists(st.dictionaries(st.text(max_size=8) | st.just("id"), st.text(max_size=8), max_size=4), max_size=6))
def test_any_listing_is_told_apart_or_refused(devices: list[dict[str, Any]]) -> None:
    try:
        opened = listing(devices).open()
    except SourceError as error:
        assert error.reason in {Reason.PARSE_ERROR, Reason.DRIVER_UNAVAILABLE}
        assert len(devices) != 1
        return
    assert len(opened.devices) == len(devices)


def numbers(devices: list[Mapping[str, Any]]) -> list[int]:
    return [device.vendor_index for device in listing([dict(device) for device in devices]).open().devices]


def test_an_ipu_without_an_id_counts_by_its_place() -> None:
    first, second = c600(0), c600(1)
    del second["id"]
    assert numbers([first, second]) == [0, 1]
    assert numbers([c600(3), m2000(1)]) == [1, 3]
