"""Which devices there are, their identities, the processes that hold them, and their numbers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from accelmetrics.backends.kit.processes import UNSEEN
from accelmetrics.backends.tpu import backend, runtime
from accelmetrics.backends.tpu.devices import NO_CHIP
from accelmetrics.backends.tpu.runtime import ports
from accelmetrics.schemas.errors import DriverGoneError, SourceError, Unavailable
from accelmetrics.schemas.protobuf import message_classes
from tests.backends.tpu.reading import Consumer
from tests.simulators.tpu import DUTY_CYCLE, TOTAL, USAGE, About, TpuMachine, TpuRuntime, entry, response
from tests.simulators.tpu.machine import GENERATIONS

GIB = 2**30
Start = Callable[[], TpuRuntime]

# Name, GiB of a device, devices of a chip.
KINDS = {
    "v2": ("TPU v2", 8, 2),
    "v3": ("TPU v3", 16, 2),
    "v4": ("TPU v4", 32, 1),
    "v5p": ("TPU v5p", 95, 1),
    "v5e": ("TPU v5e", 16, 1),
    "v6e": ("TPU v6e", 32, 1),
    "7x": ("TPU7x", 96, 2),
}


@pytest.mark.parametrize("generation", GENERATIONS)
def test_each_generation_is_known_from_the_pci_bus(machine: TpuMachine, generation: str) -> None:
    machine.chips(generation, 2)
    name, gib, per_chip = KINDS[generation]
    found = backend.detect()
    assert (found.present, found.devices, found.advice) == (True, 2 * per_chip, "")
    assert f"2 {name} chips on the PCI bus (0000:00:04.0, 0000:00:05.0)" in found.evidence
    devices = Consumer().driver.devices
    assert [device.vendor_index for device in devices] == list(range(2 * per_chip))
    assert {(device.kind, device.vendor, device.name, device.memory_total_bytes) for device in devices} == {
        ("tpu", "google", name, gib * GIB)
    }
    assert [device.pci_bus_id for device in devices] == sorted(["0000:00:04.0", "0000:00:05.0"] * per_chip)


@pytest.mark.parametrize(
    ("generation", "missing", "flags"),
    [
        ("v4", "no /dev/accel0, no /dev/accel1", "--device=/dev/accel0 --device=/dev/accel1"),
        ("v5e", "no /dev/vfio/0, no /dev/vfio/1", "--device=/dev/vfio"),
    ],
)
def test_chips_without_their_nodes_are_told_with_the_flag_that_passes_them(
    machine: TpuMachine, generation: str, missing: str, flags: str
) -> None:
    machine.nodes = False
    machine.chips(generation, 2)
    found = backend.detect()
    assert found.present
    assert found.evidence.endswith(f", {missing}")
    assert found.advice == f"in a container, start it with {flags} (google.com/tpu in Kubernetes)"


def test_a_container_that_was_given_one_chip_of_two_is_not_told_to_pass_the_other(machine: TpuMachine) -> None:
    machine.chip("v4", "0000:00:04.0", 0)
    machine.nodes = False
    machine.chip("v4", "0000:00:05.0", 1)
    assert backend.detect().advice == ""


def test_google_s_other_devices_are_no_tpus(machine: TpuMachine) -> None:
    machine.function("0000:00:01.0", "0x0042", kind="0x020000")
    machine.function("0000:00:02.0", "0x001f", kind="0x010802")
    machine.function("0000:00:03.0", "0x0063", vendor="0x10de")
    machine.function("0000:00:04.0", "0x0027", "0x0001")
    found = backend.detect()
    assert not found.present
    assert "no TPU of Google (0x1ae0)" in found.evidence


def test_a_generation_from_later_is_a_tpu_of_which_nothing_more_is_known(machine: TpuMachine) -> None:
    machine.function("0000:00:04.0", "0x00ff")
    (device,) = Consumer().driver.devices
    assert (device.name, device.memory_total_bytes, device.cores, device.architecture) == ("TPU", None, None, "")


def test_chips_whose_cores_are_functions_of_their_own_are_not_counted_twice(machine: TpuMachine) -> None:
    for node, address in enumerate(("0000:00:04.0", "0000:00:04.1", "0000:00:05.0", "0000:00:05.1")):
        machine.chip("7x", address, node)
    devices = Consumer().driver.devices
    assert [device.pci_bus_id for device in devices] == ["0000:00:04.0", "0000:00:04.1", "0000:00:05.0", "0000:00:05.1"]


def test_chips_are_in_the_order_of_their_nodes(machine: TpuMachine) -> None:
    machine.chip("v5e", "0000:00:04.0", 10)
    machine.chip("v5e", "0000:00:05.0", 9)
    assert [device.pci_bus_id for device in Consumer().driver.devices] == ["0000:00:05.0", "0000:00:04.0"]


@pytest.mark.parametrize(("module", "package"), [("grpc", "grpcio"), ("google.protobuf", "protobuf")])
def test_a_missing_package_is_said_by_detection_and_on_opening(
    machine: TpuMachine, monkeypatch: pytest.MonkeyPatch, module: str, package: str
) -> None:
    machine.chips("v5e", 1)
    message_classes.cache_clear()
    monkeypatch.setitem(sys.modules, module, None)
    assert backend.detect().advice == "pip install 'accelmetrics[tpu]'"
    assert f"{package}, which reads their runtime, is not installed" in backend.detect().evidence
    with pytest.raises(SourceError) as raised:
        backend.open()
    assert raised.value.reason == "driver_unavailable"
    assert raised.value.advice == "pip install 'accelmetrics[tpu]'"
    assert f"'{package}' is not installed: pip install 'accelmetrics[tpu]'" in raised.value.message


def test_neither_a_chip_nor_a_runtime_is_said_on_opening(machine: TpuMachine) -> None:
    with pytest.raises(SourceError, match="no TPU on the PCI bus, and no runtime on localhost:") as raised:
        backend.open()
    assert raised.value.reason == "driver_unavailable"


# Numbers


def numbered(found: Consumer) -> dict[int, str]:
    return {device.vendor_index: device.pci_bus_id for device in found.driver.devices}


def test_the_runtime_s_numbers_go_to_the_chips_in_order(machine: TpuMachine, start: Start) -> None:
    machine.chips("v6e", 4)
    start().devices(8, 9, 12, 13)
    found = Consumer()
    assert numbered(found) == {8: "0000:00:04.0", 9: "0000:00:05.0", 12: "0000:00:06.0", 13: "0000:00:07.0"}
    assert found.device(12).values["hbmCapacityUsage"] == 3 * GIB


def test_where_some_chips_are_held_the_runtime_s_numbers_go_to_those(machine: TpuMachine, start: Start) -> None:
    nodes = machine.chips("v5e", 4)
    machine.process(7, nodes[2])
    machine.process(8, nodes[3])
    start().devices(0, 1)
    found = Consumer()
    assert numbered(found) == {0: "0000:00:06.0", 1: "0000:00:07.0", 2: "0000:00:04.0", 3: "0000:00:05.0"}
    assert found.device(1).values["hbmCapacityUsage"] == 2 * GIB
    assert found.device(2).only_reason() == found.device(3).only_reason() == "not_in_use"


def test_where_it_is_not_known_which_are_held_small_numbers_are_positions(machine: TpuMachine, start: Start) -> None:
    machine.chips("v5e", 4)
    start().devices(1, 3)
    assert numbered(Consumer()) == {0: "0000:00:04.0", 1: "0000:00:05.0", 2: "0000:00:06.0", 3: "0000:00:07.0"}


def test_numbers_that_fit_nothing_are_devices_without_an_address(machine: TpuMachine, start: Start) -> None:
    machine.chips("v5e", 2)
    start().devices(1, 42, 46)
    found = Consumer()
    assert numbered(found) == {0: "0000:00:04.0", 1: "", 2: "0000:00:05.0", 42: "", 46: ""}
    assert found.device(46).values["hbmCapacityUsage"] == 3 * GIB
    assert found.device(46).reading.processes is NO_CHIP


def test_devices_that_only_the_runtime_knows_are_listed(machine: TpuMachine, start: Start) -> None:
    start().devices(3)
    (device,) = Consumer().driver.devices
    assert (device.vendor_index, device.name, device.pci_bus_id) == (3, "TPU", "")


def test_a_device_that_turns_up_later_makes_the_source_open_again(v5e: TpuRuntime) -> None:
    found = Consumer()
    v5e.devices(0, 1, 2, 3, 9)
    for _ in range(2):
        with pytest.raises(DriverGoneError, match="new devices \\(9\\)"):
            found.device(0)
    again = Consumer()
    assert again.device(9).values["hbmCapacityUsage"] == 5 * GIB


@pytest.mark.parametrize("key", ["device-id", "device_id", "core", ""])
def test_the_device_is_the_integer_whatever_its_key(v5e: TpuRuntime, key: str) -> None:
    v5e.gauge(DUTY_CYCLE, {0: 33.0}, key=key)
    assert Consumer().device(0).values["dutyCycle"] == 33.0


def test_digits_under_a_key_that_means_a_device_are_one(v5e: TpuRuntime) -> None:
    entries = [
        entry(About("device_id", "1"), 11.0),
        entry(About("", (("core_type", "9"), ("device_ordinal", "2"))), 22.0),
        entry(About("", (("device_ordinal", 3),)), 33.0),
    ]
    v5e.answers[DUTY_CYCLE] = response(DUTY_CYCLE, *entries)
    found = Consumer()
    assert [found.device(number).values["dutyCycle"] for number in (1, 2, 3)] == [11.0, 22.0, 33.0]


@pytest.mark.parametrize(
    "about", [None, About("device-id", True), About("device-id", -1), About("device-id", 2**40), About("name", "0"), About("", ())]
)
def test_an_entry_that_names_no_device_is_not_device_0(v5e: TpuRuntime, about: About | None) -> None:
    v5e.answers[DUTY_CYCLE] = response(DUTY_CYCLE, entry(about, 99.0), entry(About("device-id", 1), 50.0))
    found = Consumer()
    assert found.device(0).reason("dutyCycle") == "parse_error"
    assert "without a device" in found.device(0).detail("dutyCycle")
    assert found.device(1).values["dutyCycle"] == 50.0


# Chips of two devices


@pytest.mark.parametrize("generation", ["v2", "v3"])
def test_the_duty_cycle_of_a_chip_is_that_of_both_its_devices_and_memory_is_each_one_s_own(
    machine: TpuMachine, start: Start, generation: str
) -> None:
    for node in machine.chips(generation, 2):
        machine.process(9, node)
    held = start()
    held.devices(0, 1, 2, 3)
    held.gauge(DUTY_CYCLE, {0: 40.0, 1: 60.0})
    found = Consumer()
    assert [found.device(number).values["dutyCycle"] for number in range(4)] == [40.0, 40.0, 60.0, 60.0]
    assert [found.device(number).values["hbmCapacityUsage"] // GIB for number in range(4)] == [1, 2, 3, 4]
    assert len(found.driver.devices) == 4


@pytest.mark.parametrize(("chips", "devices"), [((4, 5), (8, 9, 10, 11)), ((4, 5), (20, 21, 22, 23)), ((4,), (8,))])
def test_chips_of_a_pod_are_fanned_out_where_their_numbers_are_no_small_ones(
    machine: TpuMachine, start: Start, chips: tuple[int, ...], devices: tuple[int, ...]
) -> None:
    machine.chips("v3", 2)
    held = start()
    held.devices(*devices)
    held.gauge(DUTY_CYCLE, {chip: float(chip) for chip in chips})
    found = Consumer()
    assert [found.device(number).values["dutyCycle"] for number in devices] == [float(chip) for chip in chips for _ in range(2)][
        : len(devices)
    ]


def test_a_duty_cycle_that_was_told_of_devices_is_not_fanned_out_again(machine: TpuMachine, start: Start) -> None:
    machine.chips("v3", 2)
    start().devices(0, 1, 2, 3)
    found = Consumer()
    assert [found.device(number).values["dutyCycle"] for number in range(4)] == [10.5, 11.5, 12.5, 13.5]


def test_later_generations_report_it_per_device(machine: TpuMachine, start: Start) -> None:
    machine.chips("7x", 2)
    held = start()
    held.gauge(TOTAL, dict.fromkeys(range(4), 96 * GIB))
    held.gauge(USAGE, dict.fromkeys(range(4), GIB))
    held.gauge(DUTY_CYCLE, {0: 1.0, 1: 2.0})
    found = Consumer()
    assert [found.device(number).values.get("dutyCycle") for number in range(4)] == [1.0, 2.0, None, None]
    assert found.device(2).reason("dutyCycle") == "not_supported"


# Holders


def pids(found: Consumer, number: int) -> list[int] | None:
    processes = found.device(number).reading.processes
    if isinstance(processes, Unavailable):
        assert processes is UNSEEN
        return None
    return [process.pid for process in processes or ()]


@pytest.mark.parametrize("generation", ["v4", "v5e", "v3"])
def test_the_processes_that_hold_a_chip(machine: TpuMachine, generation: str) -> None:
    nodes = machine.chips(generation, 2)
    machine.process(30, nodes[1])
    machine.process(4, nodes[1], "/dev/vfio/vfio", "socket:[1234]")
    machine.process(5, "/dev/vfio/100", "/dev/accel")
    found = Consumer()
    per_chip = KINDS[generation][2]
    assert [pids(found, number) for number in range(2 * per_chip)] == [[]] * per_chip + [[4, 30]] * per_chip
    machine.end(4)
    machine.end(30)
    assert pids(found, 2 * per_chip - 1) == []


def test_without_permission_the_holders_of_a_chip_are_not_known(machine: TpuMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = machine.chips("v5e", 2)
    machine.process(4, nodes[0])
    closed = str(machine.process(5, nodes[1]))
    listed = os.listdir

    def refuse(path: str | Path) -> list[str]:
        if str(path) == closed:
            raise PermissionError(13, "Permission denied", closed)
        return listed(path)

    monkeypatch.setattr(os, "listdir", refuse)
    found = Consumer()
    assert [pids(found, number) for number in range(2)] == [[4], None]
    assert found.device(1).only_reason() == "not_in_use"


# Ports


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", (8431,)), ("8431,8432", (8431, 8432)), (" 9000 , 9001", (8431, 9000, 9001)), ("9000,9000,0,65536,-1,x,²,1e3,", (8431, 9000))],
)
def test_the_ports_are_the_usual_one_and_those_listed(text: str, expected: tuple[int, ...]) -> None:
    assert ports(text) == expected


def test_so_many_ports_and_no_more() -> None:
    assert len(ports(",".join(map(str, range(9000, 9500))))) == runtime.MAX_PORTS
