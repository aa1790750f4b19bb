"""What tools print, as records; any text is fine, and gives nothing at worst."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from accelmetrics.backends.kit import grouped, json_document, json_documents, rows, sections
from accelmetrics.schemas.errors import Reason, SourceError


def test_a_document_is_found_whatever_stands_around_it() -> None:
    text = 'WARNING [low power] {none}\nException caught: map::at\n{"card0": {"use": "7"}}\nbye'
    assert json_document(text) == {"card0": {"use": "7"}}
    assert json_document('[{"gpu": 0}]') == [{"gpu": 0}]


def test_several_documents_are_given_one_after_another_and_a_cut_one_is_passed_over() -> None:
    assert list(json_documents('{"a": 1}\n[2]\n{"b": {"c": 3}, "d')) == [{"a": 1}, [2], {"c": 3}]


@pytest.mark.parametrize("text", ["", "Segmentation fault", "{", "[" * 100_000, '{"a": ', "{}", "[]"], ids=range(7))
def test_a_text_without_a_document_is_a_parse_error(text: str) -> None:
    with pytest.raises(SourceError) as caught:
        json_document(text)
    assert caught.value.reason == Reason.PARSE_ERROR


@given(st.text(max_size=300))
def test_any_text_is_searched_in_peace(text: str) -> None:
    list(json_documents(text))
    rows(text)
    rows(text, ("a", "b"))
    sections(text, r"x(?P<n>\d+)")


def test_rows_in_the_order_that_was_asked_for() -> None:
    text = "0, HL-225, GPU-1, 98304 MiB, N/A\n\n1, HL-225, GPU-2, 98304 MiB, 33 C\nunknown field\n"
    assert rows(text, ("index", "name", "uuid", "memory.total", "temperature.aip")) == [
        {"index": "0", "name": "HL-225", "uuid": "GPU-1", "memory.total": "98304 MiB", "temperature.aip": "N/A"},
        {"index": "1", "name": "HL-225", "uuid": "GPU-2", "memory.total": "98304 MiB", "temperature.aip": "33 C"},
    ]


def test_rows_below_a_heading_have_its_units_beside_their_numbers() -> None:
    heading = "Timestamp, DeviceId, GPU Power (W), memory.used [MiB], name\n"
    text = heading + '06:14:46.000,    0, 30.10, N/A, "Arc, A770"\n06:14:46.000, 1, , 12, x\n'
    assert rows(text) == [
        {"Timestamp": "06:14:46.000", "DeviceId": "0", "GPU Power": "30.10 W", "memory.used": "N/A", "name": "Arc, A770"},
        {"Timestamp": "06:14:46.000", "DeviceId": "1", "GPU Power": "", "memory.used": "12 MiB", "name": "x"},
    ]
    assert rows("") == []


BY_INDENTATION = """\
XPUSMI LOG
Driver Version : 5.0.21
XPU 00000000:52:00.0
    Product Name    : P800
    Memory Usage
        Total : 98304 MiB
        Used  : 10 MiB
    Utilization
        Xpu : 3 %
    XPU Current Temp : 35 C
    Processes : None
XPU 00000000:53:00.0
    Product Name    : P800
    Processes
        Process ID : 17
        Process ID : 18
"""


def test_sections_by_indentation() -> None:
    assert sections(BY_INDENTATION, r"XPU (?P<bdf>\S+)$") == [
        {
            "bdf": "00000000:52:00.0",
            "Product Name": "P800",
            "Memory Usage.Total": "98304 MiB",
            "Memory Usage.Used": "10 MiB",
            "Utilization.Xpu": "3 %",
            "XPU Current Temp": "35 C",
            "Processes": "None",
        },
        {"bdf": "00000000:53:00.0", "Product Name": "P800", "Processes.Process ID": "17"},
    ]


def test_sections_with_tabs_and_no_blanks() -> None:
    text = "QID 0\n\tStatus:Ready\n\tDram Total:33000 MB\n\tPCI Address:0000:17:00.0\nQID 1\n\tStatus:Error\n"
    assert sections(text, r"QID (?P<qid>\d+)") == [
        {"qid": "0", "Status": "Ready", "Dram Total": "33000 MB", "PCI Address": "0000:17:00.0"},
        {"qid": "1", "Status": "Error"},
    ]
    assert sections("Product Name : P800\n", "XPU ") == []


def test_records_are_grouped_by_text() -> None:
    records: list[dict[str, Any]] = [{"npu": 0, "pid": 1}, {"npu": "0", "pid": 2}, {"npu": " 1", "pid": 3}, {"pid": 4}]
    found = grouped(records, "npu")
    assert {key: [record["pid"] for record in of] for key, of in found.items()} == {"0": [1, 2], "1": [3], "None": [4]}
