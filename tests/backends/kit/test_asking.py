"""Commands that are asked for fields, device by device, and those whose names two vendors share: scripts, as a third party's tools."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from accelmetrics.backends.contract import Reading, ReadOptions
from accelmetrics.backends.kit import Command, DeviceSample, Field, PolledBackend, Query, Says, each_device, rows, sections
from accelmetrics.backends.kit.polled import PolledDriver
from accelmetrics.schemas.errors import Reason, SourceError
from tests.support.readings import values

FIELDS = ("index", "uuid", "power.draw", "temperature.gpu", "clocks.current.sm")
ROWS = (
    Field("powerWatts", ("gpu.power.draw", "power.draw"), "W"),
    Field("temp", "temperature.gpu", "C"),
    Field("smClock", "clocks.current.sm", "MHz"),
)
IDENTITY = {"vendor_index": "index", "uuid": "uuid"}


def tool(directory: Path, name: str, code: str) -> Path:
    """A script of Python as a command; ``calls`` beside it has a line for each run."""
    directory.mkdir(exist_ok=True)
    path = directory / name
    head = f"#!{sys.executable} -IS\nimport os, sys\nHERE = os.path.dirname(__file__)\n"
    log = "with open(HERE + '/calls', 'a') as log: log.write(' '.join(sys.argv[1:]) + '\\n')\n"
    path.write_text(f"{head}{log}{code}")
    path.chmod(0o755)
    return path


def calls(path: Path) -> list[str]:
    return path.with_name("calls").read_text().splitlines()


def smi(known: Iterable[str], refusal: str = "'Field \"' + bad[0] + '\" is not a valid field to query.'", more: str = "") -> str:
    """A tool that refuses a query with a field that it does not know."""
    return f"""
asked = sys.argv[1].partition('=')[2].split(',')
{more}
bad = [name for name in asked if name not in {list(known)!r}]
if bad:
    print({refusal})
    sys.exit(2)
values = {{'index': '{{0}}', 'uuid': 'GPU-{{0}}', 'power.draw': '6{{0}}.5 W', 'temperature.gpu': '40', 'clocks.current.sm': '900 MHz'}}
for device in (1, 0):
    print(', '.join(values[name].format(device) for name in asked))
"""


def opened(connect: Any, **more: Any) -> PolledDriver:
    return PolledBackend("acme", kind="gpu", source="acme-smi", connect=connect, fields=ROWS, identity=IDENTITY, **more).open()


def read(driver: PolledDriver, unit: int = 0) -> Reading:
    return driver.reader(ReadOptions(1)).read(unit, [])


def query(path: Path, fields: Iterable[str] = FIELDS, **more: Any) -> Query:
    command = Command("acme-smi", directories=(str(path.parent),), **more)
    return Query(command, tuple(fields), "--query-gpu={fields}", "--format=csv,noheader")


# A query of fields


def test_a_query_gives_each_field_of_each_device(tmp_path: Path) -> None:
    path = tool(tmp_path / "bin", "acme-smi", smi(FIELDS))
    driver = opened(query(path))
    assert [device.uuid for device in driver.devices] == ["GPU-0", "GPU-1"]
    assert values(read(driver, 1)) == {"powerWatts": 61.5, "temp": 40, "smClock": 900}
    assert calls(path)[0] == "--query-gpu=index,uuid,power.draw,temperature.gpu,clocks.current.sm --format=csv,noheader"


@pytest.mark.parametrize(
    "refusal", ["'Field \"' + bad[0] + '\" is not a valid field to query.'", "'error 2'", "'usage: --query-gpu=' + sys.argv[1]"]
)
def test_fields_that_a_release_refuses_are_left_out_and_say_so(tmp_path: Path, refusal: str) -> None:
    """Whether the tool names them, says nothing of use, or repeats all of them."""
    path = tool(tmp_path / "bin", "acme-smi", smi(("index", "uuid", "temperature.gpu", "power.draw"), refusal))
    asked = query(path, (*FIELDS, "gpu.power.draw"))
    driver = opened(asked)
    reading = read(driver)
    assert values(reading) == {"powerWatts": 60.5, "temp": 40}
    reason, detail = reading.unavailable["smClock"]
    assert reason == Reason.NOT_SUPPORTED
    assert detail.startswith('acme-smi refuses the field "clocks.current.sm": ')
    before = len(calls(path))
    driver.close()
    assert values(read(opened(asked))) == {"powerWatts": 60.5, "temp": 40}
    later = set(calls(path)[before:])
    assert later == {"--query-gpu=index,uuid,power.draw,temperature.gpu --format=csv,noheader"}, "it is remembered"


def test_another_release_is_asked_anew(tmp_path: Path) -> None:
    path = tool(tmp_path / "bin", "acme-smi", smi(FIELDS[:4]))
    asked = query(path)
    assert "smClock" not in values(read(opened(asked)))
    tool(tmp_path / "bin", "acme-smi", smi(FIELDS) + "# another size")
    assert values(read(opened(asked)))["smClock"] == 900


def test_a_tool_that_fails_as_a_whole_refuses_no_field(tmp_path: Path) -> None:
    down = "if os.path.exists(HERE + '/down'): sys.exit('driver is not loaded: power.draw')"
    path = tool(tmp_path / "bin", "acme-smi", smi(FIELDS, more=down))
    path.with_name("down").touch()
    asked = query(path)
    with pytest.raises(SourceError, match="driver is not loaded") as caught:
        opened(asked)
    assert caught.value.reason == Reason.DRIVER_ERROR
    path.with_name("down").unlink()
    assert values(read(opened(asked))) == {"powerWatts": 60.5, "temp": 40, "smClock": 900}


def test_a_field_for_which_permission_is_missing_is_asked_for_again_after_opening(tmp_path: Path) -> None:
    denied = "if 'power.draw' in asked and not os.path.exists(HERE + '/root'): sys.exit('power.draw: permission denied')"
    path = tool(tmp_path / "bin", "acme-smi", smi(FIELDS, more=denied))
    asked = query(path)
    reading = read(opened(asked))
    assert reading.unavailable["powerWatts"].reason == Reason.NO_PERMISSION
    path.with_name("root").touch()
    assert values(read(opened(asked)))["powerWatts"] == 60.5


def test_with_a_heading_names_and_units_are_those_that_are_printed(tmp_path: Path) -> None:
    path = tool(tmp_path / "bin", "acme-smi", "print('uuid, power.draw [mW], index, temperature.gpu')\nprint('GPU-7, 61500, 0, [N/A]')")
    asked = Query(Command("acme-smi", directories=(str(path.parent),)), FIELDS, "--query-gpu={fields}", "--format=csv")
    driver = opened(asked)
    assert (driver.devices[0].uuid, values(read(driver))) == ("GPU-7", {"powerWatts": 61.5})


# A run for each device

PER_DEVICE = """
number = sys.argv[-1]
if number == '1': sys.exit('device 1: permission denied')
if number == '3':
    import time
    time.sleep(60)
if number == '4': number = '9'
print('\\tChip ID : 0\\n\\tPower(W) : 3' + number + '\\n\\tTemperature(C) : NA' if number != '9' else 'garbage')
"""
DETAIL = (Field("powerWatts", "Power(W)", "W"), Field("temp", "Temperature(C)", "C"))


def listed(path: Path, *numbers: int, timeout: float = 20.0) -> PolledDriver:
    connect = each_device(
        Command("acme-smi", directories=(str(path.parent),), timeout=timeout),
        lambda: [{"id": number, "uuid": f"GPU-{number}"} for number in numbers],
        ("info", "-i", "{id}"),
        lambda text: sections(text, r"\s*Chip ID : (?P<chip>\d+)"),
    )
    identity = {"vendor_index": "id", "uuid": "uuid"}
    return PolledBackend("acme", kind="npu", source="acme-smi", connect=connect, fields=DETAIL, identity=identity).open()


def test_a_command_is_run_once_for_each_device(tmp_path: Path) -> None:
    path = tool(tmp_path / "bin", "acme-smi", PER_DEVICE)
    driver = listed(path, 2, 0)
    assert [(device.vendor_index, device.uuid) for device in driver.devices] == [(0, "GPU-0"), (2, "GPU-2")]
    assert [values(read(driver, unit)) for unit in (0, 1)] == [{"powerWatts": 30}, {"powerWatts": 32}]
    assert set(calls(path)) == {"info -i 0", "info -i 2"}


def test_a_run_that_fails_costs_its_own_device_alone(tmp_path: Path) -> None:
    path = tool(tmp_path / "bin", "acme-smi", PER_DEVICE)
    driver = listed(path, 0, 1, 4)
    assert values(read(driver, 0)) == {"powerWatts": 30}
    denied, garbage = read(driver, 1).unavailable, read(driver, 2).unavailable
    assert {name: why.reason for name, why in denied.items()} == dict.fromkeys(("powerWatts", "temp"), Reason.NO_PERMISSION)
    assert garbage["powerWatts"].reason == Reason.DRIVER_ERROR


def test_runs_that_hang_end_together_at_the_timeout_of_one(tmp_path: Path) -> None:
    path = tool(tmp_path / "bin", "acme-smi", PER_DEVICE)
    driver = listed(path, 3, 0, timeout=4.0)
    assert values(read(driver, 0)) == {"powerWatts": 30}
    assert read(driver, 1).unavailable["powerWatts"].reason == Reason.TIMED_OUT


# Names that two vendors share


def shared(tmp_path: Path) -> tuple[Path, Path]:
    """Two tools of one name."""
    theirs = tool(tmp_path / "a", "xpu-smi", "print('Intel XPU Manager CLI 1.2')")
    ours = tool(
        tmp_path / "b",
        "xpu-smi",
        "print('XPUSMI 5.0' if '-v' in sys.argv else 'index, power.draw\\n0, 7 W')",
    )
    return theirs, ours


def proven(*directories: Path) -> Command:
    return Command("xpu-smi", directories=tuple(map(str, directories)), proof=("-v", "XPUSMI"), install="install the driver")


def test_the_tool_of_another_vendor_is_passed_over(tmp_path: Path) -> None:
    theirs, ours = shared(tmp_path)
    command = proven(theirs.parent, ours.parent)
    assert command.find() == str(ours)
    assert command.run().stdout.startswith("index")
    assert calls(theirs) == ["-v"], "it is asked nothing but whose it is, and once"


def test_where_there_is_only_another_vendor_s_the_driver_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, _ = shared(tmp_path)
    monkeypatch.setenv("PATH", f"{theirs.parent}:{os.environ['PATH']}")
    with pytest.raises(SourceError, match=r"is a tool of another vendor: Intel XPU Manager CLI 1\.2") as caught:
        opened(proven().poll(lambda text: map(DeviceSample, rows(text))))
    assert (caught.value.reason, caught.value.advice) == (Reason.DRIVER_UNAVAILABLE, "install the driver")


def test_a_tool_that_was_exchanged_is_asked_again(tmp_path: Path) -> None:
    theirs, _ = shared(tmp_path)
    command = proven(theirs.parent)
    with pytest.raises(SourceError):
        command.find()
    tool(theirs.parent, "xpu-smi", "print('XPUSMI 5.1, which is another size')")
    assert command.find() == str(theirs)


def test_a_tool_that_is_disowned_is_passed_over_until_it_is_exchanged(tmp_path: Path) -> None:
    theirs, ours = shared(tmp_path)
    command = Command("xpu-smi", directories=(str(theirs.parent), str(ours.parent)))
    assert command.find() == str(theirs)
    command.disown("is the one for CPUs")
    assert command.find() == str(ours)
    command.disown("is a toy")
    with pytest.raises(SourceError, match=f"{theirs} is the one for CPUs"):
        command.find()
    tool(ours.parent, "xpu-smi", "print('XPUSMI 5.1, which is another size')")
    assert command.find() == str(ours)


def test_words_for_no_devices(tmp_path: Path) -> None:
    path = tool(tmp_path / "bin", "acme-smi", "print('index, power.draw\\nNo AIPs were found here')")
    says = (Says("no aips", Reason.DRIVER_UNAVAILABLE, "no device is passed into this container"),)
    command = Command("acme-smi", directories=(str(path.parent),), says=says)
    with pytest.raises(SourceError, match="no device is passed into this container: No AIPs were found here"):
        opened(command.poll(lambda text: map(DeviceSample, rows(text))))
