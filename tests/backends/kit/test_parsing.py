"""What tools print, as records; any text is fine, and gives nothing at worst."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, strategies as st

from accelmetrics.backends.kit import (
    blocks,
    figure,
    first_match,
    grouped,
    json_document,
    json_documents,
    number,
    rows,
    sections,
    table,
    with_units,
    xml_records,
)
from accelmetrics.schemas.errors import Reason, SourceError, Unavailable


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
    sections(text, ends=r"x(?P<n>\d+)")
    for parse in (lambda: table(f"a  b\n---\n{text}", "a"), lambda: table(text, ""), lambda: xml_records(f"<a>{text}", "a")):
        with suppress(SourceError):
            list(parse())


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
    assert rows(f"loading\n\n{heading}1, 0, 5, 6, x\n")[0]["GPU Power"] == "5 W"


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
        {"bdf": "00000000:53:00.0", "Product Name": "P800", "Processes.Process ID": "17", "Processes.Process ID.1": "18"},
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


TWO_LINES = """\
ACME-SMI 2.1    driver: 7.0.3
+---------------------------------+----------------------+----------------------+
| ID   Name         Persistence-M | Bus-Id               |   Util    Compute M. |
| Fan  Temp(C)      Pwr:Usage/Cap |         Memory-Usage |                      |
|=================================+======================+======================|
|  1   A1 Pro                 N/A | 0000:3A:00.0         |    88%        Shared |
| N/A  61           75W /   350 W |   1024/ 65536 MiB    |                      |
+---------------------------------+----------------------+----------------------+
|  0   A1                     Off | 0000:2A:00.0         |     0%               |
|  9%  [N/A]        N/A / 350 W   | 0MiB(65536MiB)       |                      |
+---------------------------------+----------------------+----------------------+
+-------------------------------------------------------------------------------+
| ID     PID       Process name                                    Memory       |
|                                                                  Usage(MiB)   |
|===============================================================================|
| 1      4711      python train.py                                 512          |
| 0      4712      x                                               N/A          |
+-------------------------------------------------------------------------------+
"""


def test_a_table_with_two_lines_a_device_is_read_by_its_headings() -> None:
    first, second = table(TWO_LINES, r"ID\s+Name")
    assert first == {
        **{"ID": "1", "Name": "A1 Pro", "Persistence-M": "N/A", "Bus-Id": "0000:3A:00.0", "Util": "88%", "Compute M.": "Shared"},
        **{"Fan": "N/A", "Temp": "61 C", "Pwr:Usage/Cap": "75W / 350 W", "Pwr:Usage/Cap.0": "75W", "Pwr:Usage/Cap.1": "350 W"},
        **{"Memory-Usage": "1024/ 65536 MiB", "Memory-Usage.0": "1024 MiB", "Memory-Usage.1": "65536 MiB"},
    }
    assert {name: second[name] for name in ("ID", "Compute M.", "Fan", "Temp", "Pwr:Usage/Cap.0", "Memory-Usage.0", "Memory-Usage.1")} == {
        **{"ID": "0", "Compute M.": "", "Fan": "9%", "Temp": "[N/A]", "Pwr:Usage/Cap.0": "N/A"},
        **{"Memory-Usage.0": "0MiB", "Memory-Usage.1": "65536MiB"},
    }


def test_headings_that_change_places_change_no_value() -> None:
    text = TWO_LINES.replace("   Util    Compute M. ", " Compute M.    Util   ").replace("    88%        Shared ", "     Shared    88%   ")
    assert next(table(text, r"ID\s+Name")) == next(table(TWO_LINES, r"ID\s+Name"))


@pytest.mark.parametrize("bars", ["|", "\u2502", "\u2503", "\u2551"])
def test_bars_and_rules_may_be_box_characters(bars: str) -> None:
    box = TWO_LINES.replace("|", bars).replace("=", "\u2550").replace("-----", "\u2500" * 5).replace("+", "\u253c")
    assert list(table(box, r"ID\s+Name")) == list(table(TWO_LINES, r"ID\s+Name"))


def test_a_heading_of_several_lines_may_be_wrapped() -> None:
    assert list(table(TWO_LINES, r"ID\s+PID", wrapped=True)) == [
        {"ID": "1", "PID": "4711", "Process name": "python train.py", "Memory Usage": "512 MiB"},
        {"ID": "0", "PID": "4712", "Process name": "x", "Memory Usage": "N/A"},
    ]


def test_a_table_without_outer_bars_ends_at_a_blank_line() -> None:
    text = "ID  Name |%GPU  Mem\n         |Temp  \n+------------+\n0   A1   |7%    1MiB(2MiB)\n         |48C\n-----\n\n"
    text += "Processes:\nID  a |b\n---\n"
    assert list(table(text, "ID +Name")) == [
        {"ID": "0", "Name": "A1", "%GPU": "7%", "Mem": "1MiB(2MiB)", "Mem.0": "1MiB", "Mem.1": "2MiB", "Temp": "48C"}
    ]


def test_messages_in_the_place_of_devices_are_passed_over() -> None:
    text = "| NPU | Process id | Memory(MB) |\n+====+\n| No running processes in NPU 0 |\n+====+\n| 1 | 42 | 7 |\n+====+\n"
    assert list(table(text, "Process id")) == [{"NPU": "1", "Process id": "42", "Memory": "7 MB"}]
    assert list(table("no table\n", "Process id")) == []


def test_a_table_that_is_cut_gives_the_devices_that_are_whole() -> None:
    found = table(TWO_LINES[: TWO_LINES.index("|  9%")], r"ID\s+Name")
    assert next(found)["ID"] == "1"
    with pytest.raises(SourceError, match="ends within a device") as caught:
        next(found)
    assert caught.value.reason == Reason.PARSE_ERROR


XML = """\
warning: slow
<?xml version="1.0" ?>
<!DOCTYPE log SYSTEM "acme.dtd">
<log>
  <driver_version>5.0</driver_version>
  <npu id="00000000:3A:00.0">
    <power unit="W">61</power>
    <pci><pci_device>3a</pci_device><pci_device>0</pci_device></pci>
    <processes/>
  </npu>
  <npu id="00000000:3B:00.0"><power>N/A</power></npu>
</log>
done
"""


def test_elements_of_xml_as_objects() -> None:
    first, second = xml_records(XML, "npu")
    assert first == {
        **{"driver_version": "5.0", "@id": "00000000:3A:00.0", "power": {"@unit": "W", "value": "61"}},
        **{"pci": {"pci_device": ["3a", "0"]}, "processes": ""},
    }
    assert second == {"driver_version": "5.0", "@id": "00000000:3B:00.0", "power": "N/A"}


@pytest.mark.parametrize(
    ("text", "whole", "words"),
    [
        (XML[: XML.index("</npu>") + 6], 1, "incomplete XML: it is cut"),
        (XML.replace("<npu id", "<npu &lt; id", 2).replace("<npu &lt;", "<npu", 1), 1, "incomplete XML: not well-formed"),
        ("Segmentation fault", 0, "no XML"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', 0, "declares entities"),
        ("<npu>" * 5000, 0, "incomplete XML: it is cut"),
        ("<log>&lt;&undefined;</log>", 0, "incomplete XML: undefined entity"),
    ],
)
def test_xml_that_is_cut_malformed_or_dangerous_is_a_parse_error(text: str, whole: int, words: str) -> None:
    found = xml_records(text, "npu")
    for _ in range(whole):
        assert next(found)["driver_version"] == "5.0"
    with pytest.raises(SourceError, match=words) as caught:
        next(found)
    assert caught.value.reason == Reason.PARSE_ERROR


def test_a_block_may_be_closed_by_its_id() -> None:
    text = "\tNPU ID : 3\n\tMemory(MB) : 10\n\tChip ID : 0\n\n\tMemory(MB) : 20\n\tChip ID : 1\n\tMemory(MB) : 30\n"
    assert [with_units(each) for each in sections(text, ends=r"\s*Chip ID\s*: (?P<chip>\d+)")] == [
        {"chip": "0", "NPU ID": "3", "Memory": "10 MB", "Chip ID": "0"},
        {"chip": "1", "Memory": "20 MB", "Chip ID": "1"},
    ]


def test_blocks_within_blocks() -> None:
    ((device, text),) = blocks("GPU 0\n  Process ID : 7\n    Memory : 5 MiB\n  Process ID : 8\n    Memory : 6 MiB\n", r"GPU (?P<id>\d+)")
    processes = sections(text, r"\s*Process ID : (?P<pid>\d+)")
    assert (device, processes) == ({"id": "0"}, [{"pid": "7", "Memory": "5 MiB"}, {"pid": "8", "Memory": "6 MiB"}])


def test_units_of_names_stand_beside_numbers() -> None:
    document = {"vram Total (MiB)": 65520, "HCU use (%)": "0.0", "Power (W)": "N/A", "Temp (edge)": "40", "Limits (W)": [1]}
    assert with_units(document) == {
        **{"vram Total": "65520 MiB", "HCU use": "0.0 %", "Power": "N/A", "Temp (edge)": "40", "Limits": [1]},
    }


@pytest.mark.parametrize(
    ("printed", "number_"), [("x16", "16"), ("16x", "16"), ("Gen4", "4"), ("N/A", "N/A"), ("1 of 2", "1 of 2"), (4, 4)]
)
def test_the_one_number_of_a_text(printed: object, number_: object) -> None:
    assert figure(printed) == number_


def test_what_is_printed_once() -> None:
    assert (first_match(TWO_LINES, r"DRIVER: (\S+)"), first_match(TWO_LINES, r"firmware: (\S+)")) == ("7.0.3", "")


@pytest.mark.parametrize(
    "printed",
    [
        *("N/A", "[N/A]", "n/a", "NA", "N / A", "-", "--", "---", "[Not Supported]", "Not Supported", "not support", "No data", "Unknown"),
        *("None", "null", "", "  ", "()", "Invalid Argument", "Not Available(Sysfs File Unaccessible)", "This device does not exist"),
        *("nan", "Unsupported", "[Not Available]", "This device doesn't support querying it"),
    ],
)
def test_every_printed_form_of_nothing(printed: str) -> None:
    value = number(printed, "W", "W")
    assert isinstance(value, Unavailable) and value.reason == Reason.NOT_SUPPORTED, value


@pytest.mark.parametrize(
    "printed", ["Insufficient Permissions", "[Insufficient Permission]", "Operation not permitted", "requires privilege"]
)
def test_words_for_no_permission(printed: str) -> None:
    value = number(printed, "W", "W")
    assert isinstance(value, Unavailable) and value.reason == Reason.NO_PERMISSION


@pytest.mark.parametrize(
    ("printed", "unit", "number_"),
    [("61 Watts", "W", 61), ("29'C", "Cel", 29), ("35\u2103", "Cel", 35), ("40 Celsius Degree", "Cel", 40), ("512Mib", "By", 2**29)],
)
def test_spellings_of_units(printed: str, unit: str, number_: int) -> None:
    assert number(printed, "1", unit) == number_
