"""The binary table: each field against the C structure of its revision, and any bytes at all."""

import ctypes
import math
import struct
from typing import Any

import pytest
from hypothesis import given, strategies as st

from accelmetrics.backends.amd.gpu_metrics import BITS, LAYOUTS, parse, readings
from accelmetrics.schemas.errors import Reason, Unavailable
from tests.simulators.amdgpu.tables import TABLES, table

NAMES = {
    **{"hotspot": "temperature_hotspot", "mem": "temperature_mem", "power": "curr_socket_power", "gfx": "average_gfx_activity"},
    **{"umc": "average_umc_activity", "energy": "energy_accumulator"},
    **{"replays": "pcie_replay_count_acc", "xgmi_read": "xgmi_read_data_acc", "xgmi_write": "xgmi_write_data_acc"},
    **{
        "gfxclk": "current_gfxclk",
        "uclk": "current_uclk",
        "average_uclk": "average_uclk_frequency",
        "hbm": "temperature_hbm",
        "throttle": "indep_throttle_status",
    },
    **{"prochot_residency": "prochot_residency_acc", "ppt_residency": "ppt_residency_acc"},
    **{"socket_thm_residency": "socket_thm_residency_acc", "vr_thm_residency": "vr_thm_residency_acc"},
    "hbm_thm_residency": "hbm_thm_residency_acc",
}
FIELDS = [(revision, field) for revision, (_, places, _) in LAYOUTS.items() for field in places]


@pytest.mark.parametrize(("revision", "field"), FIELDS)
def test_each_field_is_where_the_structure_has_it(revision: tuple[int, int], field: str) -> None:
    kind = TABLES[revision]
    member, (form, offset) = getattr(kind, NAMES[field]), LAYOUTS[revision][1][field]
    assert (offset, struct.calcsize(f"<{form}")) == (member.offset, member.size)
    one: Any = 77 if form in "HIQ" else [77]
    parsed = parse(table(*revision, **{NAMES[field]: one}))
    assert not isinstance(parsed, Unavailable)
    assert parsed[field] == (77,)


@pytest.mark.parametrize("revision", [revision for revision, (sizes, _, _) in LAYOUTS.items() if sizes])
def test_each_table_is_as_long_as_the_structure(revision: tuple[int, int]) -> None:
    assert LAYOUTS[revision][0][0] == ctypes.sizeof(TABLES[revision])


@pytest.mark.parametrize("revision", TABLES)
def test_a_table_that_the_firmware_did_not_fill_has_no_values(revision: tuple[int, int]) -> None:
    parsed = parse(table(*revision))
    assert not isinstance(parsed, Unavailable)
    assert (parsed, readings(parsed)) == ({}, {})


@pytest.mark.parametrize("revision", [(1, 6), (1, 7), (1, 8)])
def test_each_partition_has_a_part_of_its_own(revision: tuple[int, int]) -> None:
    parsed = parse(table(*revision, busy=[[number * 10 + 1, number * 10 + 2] for number in range(8)]))
    assert not isinstance(parsed, Unavailable)
    assert [parsed[f"xcp{number}"] for number in range(8)] == [(number * 10 + 1, number * 10 + 2) for number in range(8)]


def test_energy_counts_in_steps_of_15_microjoules() -> None:
    parsed = parse(table(1, 4, energy_accumulator=1_000_000, curr_socket_power=100))
    assert not isinstance(parsed, Unavailable)
    assert readings(parsed)["energy"] == pytest.approx(15.2587890625 * 1_000_000)


@pytest.mark.parametrize("cause", BITS)
def test_each_bit_of_the_mask_has_one_cause(cause: str) -> None:
    for bit in BITS[cause]:
        parsed = parse(table(2, 3, indep_throttle_status=1 << bit))
        assert not isinstance(parsed, Unavailable)
        assert {name for name, value in readings(parsed).items() if value == 1} == {cause, "throttled"}


@pytest.mark.parametrize(
    ("data", "reason", "words"),
    [
        (b"\x78\x00\x01", Reason.PARSE_ERROR, "has 3 bytes"),
        (table(1, 3)[:-1], Reason.PARSE_ERROR, "cut: 119 of 120"),
        (b"\x10\x00\x01\x63" + bytes(12), Reason.NOT_SUPPORTED, "revision 1.99"),
        (b"\xa0\x00\x01\x06" + bytes(156), Reason.NOT_SUPPORTED, "160 bytes long, not 1664"),
    ],
)
def test_what_is_not_understood_says_so(data: bytes, reason: Reason, words: str) -> None:
    found = parse(data)
    assert isinstance(found, Unavailable)
    assert found.reason == reason
    assert words in found.detail


@given(st.binary(max_size=4096))
def test_any_bytes_can_be_parsed(data: bytes) -> None:
    _check(data)


@given(st.sampled_from(sorted(TABLES)), st.data())
def test_any_content_of_any_revision_gives_whole_numbers_below_all_ones(revision: tuple[int, int], data: st.DataObject) -> None:
    header = table(*revision)[:4]
    size = ctypes.sizeof(TABLES[revision])
    seed = data.draw(st.binary(min_size=1, max_size=64))
    body = (seed * (size // len(seed) + 1))[: size - 4]
    _check(header + body[: data.draw(st.sampled_from([size, size - 5, 0]))])


def _check(data: bytes) -> None:
    found = parse(data)
    if isinstance(found, Unavailable):
        assert found.reason in {Reason.PARSE_ERROR, Reason.NOT_SUPPORTED}
    else:
        assert all(0 <= value < 2**64 - 1 for values in found.values() for value in values)
        assert all(isinstance(value, (int, float)) and math.isfinite(value) for value in readings(found).values())
