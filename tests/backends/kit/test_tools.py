"""Commands as the source of a polled backend: run for each poll, or printing records for as long as they live."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from accelmetrics.backends.contract import ReadOptions
from accelmetrics.backends.kit import Command, DeviceSample, Field, PolledBackend, Says, json_document, rows, stream
from accelmetrics.backends.kit.polled import PolledDriver
from accelmetrics.schemas.errors import DriverGoneError, Reason, SourceError
from tests.simulators.commands import CommandStandIn
from tests.support.readings import values

IDENTITY = {"vendor_index": "DeviceId"}
FIELDS = (Field("powerWatts", "GPU Power", "W"),)
HEAD = "Timestamp, DeviceId, GPU Power (W)\n"


def parse(text: str) -> Iterator[DeviceSample]:
    return map(DeviceSample, rows(text))


def opened(connect: Any, **more: Any) -> PolledDriver:
    return PolledBackend("acme", kind="gpu", source="acme-smi", connect=connect, fields=FIELDS, identity=IDENTITY, **more).open()


@pytest.fixture
def tool(tmp_path: Path) -> CommandStandIn:
    return CommandStandIn(tmp_path, "acme-smi")


def command(tool: CommandStandIn, *arguments: str, **more: Any) -> Command:
    return Command(("acme2-smi", "acme-smi"), arguments, directories=(str(tool.directory),), install="install it", **more)


# Commands that are run


def test_each_poll_runs_it(tool: CommandStandIn) -> None:
    tool.behave(f"{HEAD}1, 0, 30.5\n")
    driver = opened(command(tool, "dump", "-n", "1").poll(parse))
    assert values(driver.reader(ReadOptions(1)).read(0, [])) == {"powerWatts": 30.5}
    assert tool.calls == [["dump", "-n", "1"]]


def test_sources_that_ask_a_tool_in_several_ways_share_what_it_is(tool: CommandStandIn) -> None:
    """That it is the right vendor's is found out once."""
    tool.behave("ACME\n", asked="whose")
    tool.behave(f"{HEAD}1, 0, 30.5\n")
    shared = command(tool, "dump", proof=("whose", "acme"))
    for more in ((), ("--errors", "-v")):
        opened(shared.poll(parse, *more))
    assert tool.calls == [["whose"], ["dump"], ["dump", "--errors", "-v"]]


SAYS = (
    Says("not in group acme", Reason.NO_PERMISSION, "acme-smi may not read the devices", "join the group"),
    Says("kmd is (down|gone)", Reason.DRIVER_UNAVAILABLE, advice="load it", gone=True),
    Says("no such sensor", Reason.NOT_SUPPORTED),
)


@pytest.mark.parametrize(
    ("printed", "reason", "words", "advice"),
    [
        (
            "User is Not In Group acme.\nTraceback",
            Reason.NO_PERMISSION,
            "acme-smi may not read the devices: User is Not In Group acme.",
            "join",
        ),
        ("error 3: kmd is gone", Reason.DRIVER_UNAVAILABLE, "acme2-smi listed no device: error 3: kmd is gone", "load it"),
        ("error 4", Reason.DRIVER_ERROR, "acme2-smi listed no device (exit status 1): error 4", ""),
    ],
)
@pytest.mark.parametrize("stream_", ["stdout", "stderr"])
def test_a_vendor_s_own_words_are_understood(
    tool: CommandStandIn, printed: str, reason: Reason, words: str, advice: str, stream_: str
) -> None:
    tool.behave(printed if stream_ == "stdout" else "", stderr=printed if stream_ == "stderr" else "", status=1)
    with pytest.raises(SourceError) as caught:
        opened(command(tool, says=SAYS).poll(parse))
    assert (caught.value.reason, caught.value.message) == (reason, words)
    assert caught.value.advice.startswith(advice)
    assert isinstance(caught.value, DriverGoneError) == ("kmd" in printed)


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("[Insufficient Permissions]", Reason.NO_PERMISSION),
        ("no such sensor (7)", Reason.NOT_SUPPORTED),
        ("not in group acme", Reason.NO_PERMISSION),
        ("warm", Reason.PARSE_ERROR),
    ],
)
def test_words_in_the_place_of_a_number_are_understood_too(tool: CommandStandIn, printed: str, reason: Reason) -> None:
    tool.behave(f"{HEAD}1, 0, {printed}\n")
    reading = opened(command(tool).poll(parse), says=SAYS).reader(ReadOptions(1)).read(0, [])
    assert reading.unavailable["powerWatts"].reason == reason


def throwing(text: str) -> Iterator[DeviceSample]:
    """A parser that trusts its documents."""
    for device in json_document(text)["devices"]:
        yield DeviceSample({"DeviceId": device["id"], "GPU Power": device["power"]["watts"]})


@pytest.mark.parametrize(
    "printed",
    [
        '{"devices": null}',
        '{"devices": 7}',
        '{"devices": ["0"]}',
        '{"devices": [{"id": 0}]}',
        '{"devices": [{"id": 0, "power": "5 W"}]}',
        '{"devices": [{"id": 0, "power": null}]}',
        '[["devices"]]',
        '{"devices": [{"id": 0, "po',
        '{"error": {}}',
    ],
)
@pytest.mark.parametrize("status", [0, 1])
def test_a_document_of_another_form_is_not_understood(tool: CommandStandIn, printed: str, status: int) -> None:
    """Whatever the vendor's parser throws at it, and though the tool says that it failed."""
    tool.behave(printed, status=status)
    with pytest.raises(SourceError, match=r"acme2-smi.s output is not understood|no JSON") as caught:
        opened(command(tool).poll(throwing))
    assert caught.value.reason == Reason.PARSE_ERROR


def test_a_device_that_is_not_understood_costs_those_behind_it_alone(tool: CommandStandIn) -> None:
    good = [{"id": number, "power": {"watts": 5}} for number in range(2)]
    tool.behave(json.dumps({"devices": good}))
    reader = opened(command(tool).poll(throwing), interval=1e-9).reader(ReadOptions(1))
    tool.behave(json.dumps({"devices": [good[0], {"id": 1, "power": None}]}))
    assert values(reader.read(0, [])) == {"powerWatts": 5}
    with pytest.raises(SourceError) as caught:
        reader.read(1, [])
    assert caught.value.reason == Reason.PARSE_ERROR


@pytest.mark.parametrize("odd", [None, "0", 7, ["DeviceId", 1]])
def test_an_entry_that_is_no_record_costs_no_other(tool: CommandStandIn, odd: object) -> None:
    """Nor does it become a device that gives nothing."""

    def trusting(text: str) -> Iterator[DeviceSample]:
        return map(DeviceSample, json_document(text))

    entries = [{"DeviceId": number, "GPU Power": 5 + number} for number in range(3)]
    tool.behave(json.dumps(entries))
    driver = opened(command(tool).poll(trusting), interval=1e-9)
    reader = driver.reader(ReadOptions(1))
    tool.behave(json.dumps([entries[0], odd, entries[2]]))
    assert [values(reader.read(unit, [])) for unit in (0, 2)] == [{"powerWatts": 5}, {"powerWatts": 7}]
    with pytest.raises(SourceError, match="lists something that is no device") as caught:
        reader.read(1, [])
    assert (caught.value.reason, len(driver.devices)) == (Reason.PARSE_ERROR, 3)


def test_a_status_says_nothing_where_devices_come_out(tool: CommandStandIn) -> None:
    tool.behave(f"{HEAD}1, 0, 30.5\n", stderr="warning", status=3)
    assert len(opened(command(tool).poll(parse)).devices) == 1


@pytest.mark.parametrize(
    ("stdout", "stderr", "status", "reason", "words"),
    [
        ("", "", 0, Reason.PARSE_ERROR, "acme2-smi printed nothing (exit status 0)"),
        ("", "open: Permission denied\n", 1, Reason.NO_PERMISSION, "listed no device (exit status 1): open: Permission denied"),
        (
            "one\nthe driver does not answer\n",
            "",
            255,
            Reason.DRIVER_ERROR,
            "listed no device (exit status 255): the driver does not answer",
        ),
        (HEAD, "", 0, Reason.DRIVER_UNAVAILABLE, "acme-smi lists no GPU"),
        ("x" * (5 << 20), "", 0, Reason.PARSE_ERROR, "acme2-smi printed more than 4194304 bytes and was killed"),
    ],
    ids=["nothing", "refused", "failing", "no devices", "endless"],
)
def test_why_there_are_no_devices(tool: CommandStandIn, stdout: str, stderr: str, status: int, reason: Reason, words: str) -> None:
    tool.behave(stdout, stderr=stderr, status=status)
    with pytest.raises(SourceError) as caught:
        opened(command(tool).poll(parse))
    assert caught.value.reason == reason
    assert words in caught.value.message


def test_one_that_is_not_there_says_where_it_was_looked_for(tmp_path: Path) -> None:
    missing = Command("acme-smi", directories=("/opt/acme/bin",), install="install it")
    for connect in (missing.poll(parse), stream(missing, parse)):
        with pytest.raises(SourceError, match="acme-smi was not found in PATH, /opt/acme/bin") as caught:
            opened(connect)
        assert (caught.value.reason, caught.value.advice) == (Reason.DRIVER_UNAVAILABLE, "install it")


def test_directories_may_have_versions_in_their_names(tmp_path: Path) -> None:
    for version in ("3.2", "4.1"):
        (tmp_path / f"corex-{version}").mkdir()
        CommandStandIn(tmp_path / f"corex-{version}", "ixsmi")
    found = Command("ixsmi", directories=(f"{tmp_path}/corex-*/ixsmi-bin",)).find()
    assert found == f"{tmp_path}/corex-3.2/ixsmi-bin/ixsmi"


def test_what_it_writes_into_a_file_is_read_instead(tmp_path: Path) -> None:
    program = tmp_path / "cnmon"
    program.write_text(f"#!{sys.executable} -IS\nopen('cnmon_info.json', 'w').write({HEAD + '1, 0, 77'!r})\nprint('Success!')\n")
    program.chmod(0o755)
    cnmon = Command("cnmon", ("info", "-j"), directories=(str(tmp_path),), output="cnmon_info.json")
    assert values(opened(cnmon.poll(parse)).reader(ReadOptions(1)).read(0, [])) == {"powerWatts": 77}


# Commands that go on


def test_a_stream_that_says_nothing_does_not_open(tool: CommandStandIn) -> None:
    tool.behave("", stderr="no such device", status=2)
    with pytest.raises(SourceError, match="acme-smi ended with status 2; its last words: no such device"):
        opened(stream(command(tool), parse))
