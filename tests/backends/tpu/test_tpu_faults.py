"""What goes wrong with a runtime, an SDK or a machine, and what is said of it."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable

import psutil
import pytest

from accelmetrics.backends.contract import ReadOptions
from accelmetrics.backends.kit.processes import UNSEEN
from accelmetrics.backends.tpu import driver, runtime, sdk
from accelmetrics.backends.tpu.runtime import Runtimes
from accelmetrics.backends.tpu.sdk import INTERVAL, LONGEST_INTERVAL, Sdk, understood
from accelmetrics.schemas.errors import Reason
from accelmetrics.testing import FakeClock
from tests.backends.tpu.reading import Consumer
from tests.simulators.tpu import DUTY_CYCLE, TOTAL, USAGE, LibtpuStandIn, RefusalError, TpuMachine, TpuRuntime, response
from tests.support.threads import wait_for_no_threads
from tests.support.waiting import HANG, Gate, wait_for

Start = Callable[[], TpuRuntime]
SDK_THREAD = "accelmetrics-tpu-sdk"


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def consumer(clock: FakeClock) -> Consumer:
    return Consumer(driver.TpuDriver(clock))


# No runtime


def test_a_tpu_that_no_program_holds_is_not_in_use(machine: TpuMachine) -> None:
    machine.chips("v5e", 2)
    found = Consumer()
    assert found.device(0).only_reason() == found.machine().only_reason() == "not_in_use"
    assert "no program holds it: no runtime on localhost:" in found.device(1).detail("dutyCycle")


def test_where_holders_cannot_be_looked_into_it_is_not_said_that_there_are_none(
    machine: TpuMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user's program may hold it: tests may run as root, which no mode stops."""
    machine.chips("v5e", 1)
    directory = machine.process(4711)
    listed = os.listdir

    def refuse(path: str) -> list[str]:
        if str(path) == str(directory):
            raise PermissionError(13, "Permission denied")
        return listed(path)

    monkeypatch.setattr(os, "listdir", refuse)
    found = Consumer().device(0)
    assert found.only_reason() == "not_in_use"
    assert found.detail("dutyCycle").endswith("reports it; the processes that hold it cannot be seen")
    assert "no program" not in found.detail("dutyCycle")


def test_in_a_container_it_is_not_said_that_there_are_none(machine: TpuMachine) -> None:
    """A container that was not given them does not show the processes that hold them either."""
    machine.contain()
    machine.chips("v5e", 1)
    found = Consumer().device(0)
    assert found.only_reason() == "not_in_use"
    assert "the processes that hold it cannot be seen" in found.detail("dutyCycle")
    assert found.reading.processes is UNSEEN


def test_a_tpu_whose_holder_serves_no_metrics_names_it_and_what_to_do(machine: TpuMachine) -> None:
    nodes = machine.chips("v5e", 2)
    machine.process(4711, nodes[1])
    found = Consumer()
    assert found.device(0).only_reason() == "not_in_use"
    assert found.device(1).reason("dutyCycle") == "driver_unavailable"
    assert "process 4711 holds it and serves no metrics" in found.device(1).detail("dutyCycle")
    assert "TPU_RUNTIME_METRICS_PORTS" in found.device(1).detail("dutyCycle")


def test_a_runtime_that_ends_and_comes_back(v5e: TpuRuntime, machine: TpuMachine) -> None:
    found = Consumer()
    assert found.device(0).values["dutyCycle"] == 10.5
    v5e.stop()
    machine.end(4711)
    assert found.device(0).only_reason() == "not_in_use"
    assert found.machine().only_reason() == "not_in_use"
    v5e.gauge(DUTY_CYCLE, {0: 77.0})
    v5e.start()
    assert found.device(0).values["dutyCycle"] == 77.0


def test_something_else_that_listens_there_is_no_runtime(machine: TpuMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.chips("v5e", 1)
    with socket.create_server(("localhost", 0)) as other:
        monkeypatch.setenv("TPU_RUNTIME_METRICS_PORTS", str(other.getsockname()[1]))

        def serve() -> None:
            while True:
                try:
                    connection, _ = other.accept()
                except OSError:
                    return
                connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
                connection.close()

        threading.Thread(target=serve, daemon=True).start()
        seen = Consumer().device(0)
        other.shutdown(socket.SHUT_RDWR)
    assert seen.only_reason() in {"driver_unavailable", "timed_out"}


# Answers that are none


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("UNIMPLEMENTED", "not_supported"),
        ("NOT_FOUND", "not_supported"),
        ("INVALID_ARGUMENT", "not_supported"),
        ("DEADLINE_EXCEEDED", "timed_out"),
        ("UNAVAILABLE", "driver_unavailable"),
        ("PERMISSION_DENIED", "no_permission"),
        ("UNAUTHENTICATED", "no_permission"),
        ("INTERNAL", "driver_error"),
        ("RESOURCE_EXHAUSTED", "driver_error"),
    ],
)
def test_a_metric_that_is_refused_costs_only_itself(v5e: TpuRuntime, status: str, reason: str) -> None:
    v5e.answers[DUTY_CYCLE] = RefusalError(status, "words of the runtime")
    found = Consumer()
    seen = found.device(1)
    assert seen.reason("dutyCycle") == reason
    assert f"{status}: words of the runtime" in seen.detail("dutyCycle")
    assert seen.values["hbmCapacityUsage"] == 2 * 2**30
    v5e.gauge(DUTY_CYCLE, {1: 5.0})
    assert found.device(1).values["dutyCycle"] == 5.0


@pytest.mark.parametrize("garbage", [b"", b"\xff" * 40, b"\x0a\x7f", b"<html>", response(DUTY_CYCLE, b"\x0a")])
def test_garbage_costs_only_itself(v5e: TpuRuntime, garbage: bytes) -> None:
    v5e.answers[DUTY_CYCLE] = garbage
    seen = Consumer().device(0)
    assert seen.reason("dutyCycle") == "parse_error"
    assert "invalid answer" in seen.detail("dutyCycle")
    assert seen.values["hbmCapacityUsage"] == 2**30


def test_an_answer_without_entries_is_no_zero(v5e: TpuRuntime) -> None:
    v5e.answers[DUTY_CYCLE] = response(DUTY_CYCLE)
    assert Consumer().device(0).reason("dutyCycle") == "not_supported"


@pytest.mark.parametrize("from_the_start", [True, False])
def test_a_runtime_that_answers_nothing_right_is_not_taken_for_none(v5e: TpuRuntime, from_the_start: bool) -> None:
    def spoil() -> None:
        v5e.answers = dict.fromkeys(v5e.answers, RefusalError("INTERNAL", "it is upset"))

    if from_the_start:
        spoil()
    found = Consumer()
    spoil()
    seen = found.device(1)
    assert seen.values == {}
    assert {seen.reason(name) for name in ("dutyCycle", "hbmCapacityTotal", "memoryUsage")} == {"driver_error"}
    assert seen.reason("tensorcoreUtilization") == "not_supported"


def test_an_answer_that_is_too_large_is_refused(v5e: TpuRuntime) -> None:
    v5e.answers[DUTY_CYCLE] = response(DUTY_CYCLE, description="x" * (5 * 1024 * 1024))
    seen = Consumer().device(0)
    assert seen.reason("dutyCycle") == "driver_error"
    assert "hbmCapacityUsage" in seen.values


def test_a_metric_that_is_not_listed_is_not_asked_for(v5e: TpuRuntime) -> None:
    del v5e.answers[DUTY_CYCLE]
    seen = Consumer().device(0)
    assert seen.reason("dutyCycle") == "not_supported"
    assert DUTY_CYCLE not in v5e.requests
    assert TOTAL in v5e.requests


@pytest.mark.parametrize("listing", [RefusalError("UNIMPLEMENTED"), RefusalError("INTERNAL"), b"\xff", b""])
def test_a_runtime_that_cannot_list_is_asked_for_everything(v5e: TpuRuntime, listing: RefusalError | bytes) -> None:
    v5e.listing = listing
    assert Consumer().device(0).values["dutyCycle"] == 10.5
    assert "hlo.queue.size.gauge" in v5e.requests


def test_the_list_is_asked_for_again_after_a_while(v5e: TpuRuntime) -> None:
    clock = FakeClock()
    duty_cycle = v5e.answers.pop(DUTY_CYCLE)
    found = consumer(clock)
    assert found.device(0).reason("dutyCycle") == "not_supported"
    v5e.answers[DUTY_CYCLE] = duty_cycle
    clock.advance(29)
    assert found.device(0).reason("dutyCycle") == "not_supported"
    clock.advance(2)
    assert found.device(0).values["dutyCycle"] == 10.5


def test_values_beyond_a_float_cost_themselves(v5e: TpuRuntime, libtpu: LibtpuStandIn) -> None:
    """The SDK's, which are text of any length: the process that is asked for them is gone, and comes back."""
    v5e.gauge(DUTY_CYCLE, {0: float("inf"), 1: 50.0})
    libtpu.metric("tensorcore_util", ["9" * 400, "1e400", "3", "9" * 60])
    before = children()
    found = Consumer()
    assert found.device(0).reason("dutyCycle") == "invalid_value"
    assert found.device(1).values["dutyCycle"] == 50.0
    reasons = {number: found.device(number).reason("tensorcoreUtilization") for number in (0, 1, 3)}
    assert reasons == {0: "parse_error", 1: "invalid_value", 3: "invalid_value"}
    assert found.device(2).values["tensorcoreUtilization"] == 3
    found.driver.close()
    wait_for(lambda: children() <= before)


@pytest.mark.parametrize("step", ["list_devices", "port_devices", "NodeHolders.look"])
def test_whatever_goes_wrong_at_the_start_leaves_nothing_behind(
    v5e: TpuRuntime, libtpu: LibtpuStandIn, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A defect of ours included: an opening that failed is tried again and again."""
    before, closed = children(), list[Runtimes]()
    close = Runtimes.close

    def note(runtimes: Runtimes) -> None:
        closed.append(runtimes)
        close(runtimes)

    def broken(*arguments: object) -> None:
        raise OverflowError(len(arguments))

    monkeypatch.setattr(Runtimes, "close", note)
    monkeypatch.setattr(f"accelmetrics.backends.tpu.driver.{step}", broken)
    with pytest.raises(OverflowError):
        driver.TpuDriver()
    assert len(closed) == 1
    wait_for_no_threads(SDK_THREAD)
    wait_for(lambda: children() <= before)


# Time


@pytest.fixture
def impatient(machine: TpuMachine, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets how long calls may take: little while a runtime hangs, and enough once it answers again."""
    del machine

    def allow(seconds: float) -> None:
        monkeypatch.setattr(runtime, "CALL_TIMEOUT", seconds)
        monkeypatch.setattr(runtime, "LIST_TIMEOUT", seconds)

    return allow


@pytest.mark.parametrize("from_the_start", [True, False])
def test_a_runtime_that_hangs_is_given_up_at_its_deadlines_and_got_over(
    v5e: TpuRuntime, impatient: Callable[[float], None], from_the_start: bool
) -> None:
    opened = None if from_the_start else Consumer()
    v5e.hang()
    impatient(0.1)
    found = opened or Consumer()
    seen = found.device(0)
    assert {seen.reason(name) for name in ("dutyCycle", "hbmCapacityUsage", "memoryUsage")} == {"timed_out"}
    v5e.release()
    impatient(HANG)
    assert found.device(0).values["dutyCycle"] == 10.5


def test_a_list_that_hangs_alone_costs_one_poll(v5e: TpuRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    monkeypatch.setattr(v5e, "_list", gate)
    monkeypatch.setattr(runtime, "LIST_TIMEOUT", 0.1)
    v5e.stop()
    v5e.start()
    try:
        assert Consumer().device(0).values["dutyCycle"] == 10.5
        assert gate.entered.is_set()
    finally:
        gate.release()


def test_a_slow_runtime_that_answers_in_time_is_heard(v5e: TpuRuntime) -> None:
    v5e.delay = 0.05
    assert Consumer().device(0).values["dutyCycle"] == 10.5


def test_what_the_runtime_noted_long_ago_is_stale_and_what_does_not_change_is_not(v5e: TpuRuntime) -> None:
    clock = FakeClock()
    now = clock.time_ns() // 10**9
    v5e.gauge(DUTY_CYCLE, {0: 50.0}, seconds=now - 300)
    v5e.gauge(USAGE, {0: 5}, seconds=now - 30)
    v5e.gauge(TOTAL, {0: 16}, seconds=now - 300)
    seen = consumer(clock).device(0)
    assert seen.reason("dutyCycle") == "stale"
    clock.advance(5)
    assert consumer(clock).device(0).detail("dutyCycle") == seen.detail("dutyCycle"), "the same header"
    assert (seen.values["hbmCapacityUsage"], seen.values["hbmCapacityTotal"]) == (5, 16)


def test_progress_is_reported_answer_by_answer(v5e: TpuRuntime) -> None:
    progress: list[object] = []
    Consumer().driver.reader(ReadOptions(1)).read(0, progress)
    assert len(progress) >= len(v5e.answers)


# Polls


@pytest.fixture
def sharing(machine: TpuMachine, monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """A clock that stands, by which polls are fresh for as long as usual."""
    del machine
    monkeypatch.setattr(driver, "FRESH", 0.25)
    return FakeClock()


def test_one_poll_serves_all_devices_and_the_next_reading_makes_a_new_one(v5e: TpuRuntime, sharing: FakeClock) -> None:
    found = consumer(sharing)
    for _ in range(2):
        before = len(v5e.requests)
        for number in range(4):
            found.device(number)
        found.machine()
        asked = len(v5e.requests) - before
    assert asked == len(v5e.answers)


def test_a_second_consumer_shares_the_poll(v5e: TpuRuntime, sharing: FakeClock) -> None:
    found = consumer(sharing)
    found.device(0)
    found.device(0)
    before = len(v5e.requests)
    assert Consumer(found.driver).device(0).values["dutyCycle"] == 10.5
    assert len(v5e.requests) == before


def test_an_old_poll_is_not_served(v5e: TpuRuntime, sharing: FakeClock) -> None:
    found = consumer(sharing)
    sharing.advance(1)
    v5e.gauge(DUTY_CYCLE, {0: 99.0})
    assert found.device(0).values["dutyCycle"] == 99.0


# Several runtimes


@pytest.fixture
def two(machine: TpuMachine, start: Start) -> tuple[TpuRuntime, TpuRuntime]:
    """Two programs with a chip each."""
    machine.chips("v5e", 2)
    first, second = start(), start()
    first.devices(0)
    second.devices(1)
    return first, second


def test_several_runtimes_are_one_machine(machine: TpuMachine, start: Start) -> None:
    machine.chips("v5e", 4)
    for pair in ((0, 1), (2, 3)):
        start().devices(*pair)
    found = Consumer()
    assert [found.device(number).values["dutyCycle"] for number in range(4)] == [10.5, 11.5, 10.5, 11.5]


def test_one_port_that_is_dead_costs_only_its_devices(two: tuple[TpuRuntime, TpuRuntime]) -> None:
    found = Consumer()
    two[0].stop()
    assert found.device(0).only_reason() == "not_in_use"
    assert found.device(1).values["dutyCycle"] == 10.5


def test_a_port_that_refuses_everything_gives_the_reason_of_the_devices_without_one(two: tuple[TpuRuntime, TpuRuntime]) -> None:
    two[1].answers = dict.fromkeys(two[1].answers, RefusalError("INTERNAL", "it is upset"))
    found = Consumer()
    assert found.device(0).values["dutyCycle"] == 10.5
    assert found.device(1).reason("dutyCycle") == "driver_error"
    assert "it is upset" in found.device(1).detail("dutyCycle")


def test_one_port_that_hangs_costs_only_its_devices(two: tuple[TpuRuntime, TpuRuntime], impatient: Callable[[float], None]) -> None:
    found = Consumer()
    two[1].hang()
    impatient(2.0)  # for the other one to answer in, on a loaded machine too
    assert found.device(0).values["dutyCycle"] == 10.5
    assert found.device(1).reason("dutyCycle") == "timed_out"


def test_two_programs_that_both_have_a_device_0_are_not_mixed_up(machine: TpuMachine, start: Start) -> None:
    """Each was started for one chip, and numbers it from 0."""
    nodes = machine.chips("v5e", 2)
    machine.process(1, nodes[0])
    machine.process(2, nodes[1])
    first, second = start(), start()
    for one, share in ((first, 30.0), (second, 60.0)):
        one.devices(0)
        one.gauge(DUTY_CYCLE, {0: share})
    found = Consumer()
    assert found.device(0).values["dutyCycle"] == 30.0
    assert found.device(1).reason("dutyCycle") == "driver_error"
    assert f"ports {first.port} and {second.port} both have a device 0" in found.device(1).detail("dutyCycle")
    first.stop()
    assert "dutyCycle" not in found.device(0).values, "the other program's numbers are not this device's"


def test_a_program_that_comes_back_on_another_port_takes_over(machine: TpuMachine, start: Start) -> None:
    machine.chips("v5e", 1)
    first, second = start(), start()
    first.devices(0)
    second.stop()
    found = Consumer()
    assert found.device(0).values["dutyCycle"] == 10.5
    first.stop()
    second.devices(0)
    second.gauge(DUTY_CYCLE, {0: 70.0})
    second.start()
    assert found.device(0).values["dutyCycle"] == 70.0


# The SDK


def test_without_an_sdk_it_is_said_what_to_install_and_it_is_not_looked_for_again(v5e: TpuRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def ask(names: tuple[str, ...], clock: FakeClock) -> sdk.SdkReading:
        asked.append(names)
        return understood('{"missing": "No module named \'libtpu\'"}', 0, clock.monotonic())

    monkeypatch.setattr(sdk, "ask", ask)
    monkeypatch.setattr(driver, "FIRST_WAIT", HANG)
    clock = FakeClock()
    found = consumer(clock)
    for _ in range(2):
        seen = found.device(0)
        assert seen.reason("tensorcoreUtilization") == "not_supported"
        assert "pip install libtpu" in seen.detail("tensorcoreUtilization")
        clock.advance(10 * LONGEST_INTERVAL)
        wait_for_no_threads(SDK_THREAD)
    assert len(asked) == 1


@pytest.fixture
def wanted(machine: TpuMachine, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the SDK was waited for, each time it was wanted."""
    del machine
    found: list[float] = []
    monkeypatch.setattr(Sdk, "want", lambda _, wait=0.0: found.append(wait))
    return found


@pytest.mark.parametrize("chip", [True, False])
def test_the_sdk_is_never_loaded_where_no_program_uses_a_chip(machine: TpuMachine, start: Start, wanted: list[float], chip: bool) -> None:
    """Nor where a runtime answers and no chip is on the bus."""
    machine.chips("v5e", 1) if chip else start().devices(0)
    Consumer().device(0)
    assert wanted == []


def test_the_sdk_is_waited_for_at_the_opening_alone(v5e: TpuRuntime, wanted: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "FIRST_WAIT", 3.0)
    Consumer().device(0)
    assert wanted == [3.0, 0.0]


@pytest.mark.parametrize(("mode", "words"), [("crash", "signal 11"), ("exit", "exit status 3")])
def test_an_sdk_that_ends_its_process_costs_only_what_it_alone_has(v5e: TpuRuntime, libtpu: LibtpuStandIn, mode: str, words: str) -> None:
    libtpu.behave(mode)
    seen = Consumer().device(0)
    assert seen.values["dutyCycle"] == 10.5
    assert seen.reason("tensorcoreUtilization") == "driver_error"
    assert f"ended its process ({words})" in seen.detail("tensorcoreUtilization")


def test_what_an_sdk_said_before_it_crashed_is_not_lost(v5e: TpuRuntime, libtpu: LibtpuStandIn) -> None:
    libtpu.metric("tensorcore_util", ["1", "2", "3", "4"])
    libtpu.crash_at("tpu_throttle_score")
    seen = Consumer().device(2)
    assert seen.values["tensorcoreUtilization"] == 3
    assert seen.reason("throttleScore") == "driver_error"


def test_an_sdk_that_hangs_is_killed_and_holds_up_no_reading(
    v5e: TpuRuntime, libtpu: LibtpuStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    libtpu.behave("hang")
    monkeypatch.setattr(driver, "FIRST_WAIT", 0.0)
    monkeypatch.setattr(sdk, "TIMEOUT", 1.0)
    found = Consumer()
    seen = found.device(0)
    assert seen.values["dutyCycle"] == 10.5
    assert seen.detail("tensorcoreUtilization") == "libtpu's SDK has not answered yet", "it was not waited for"
    wait_for(lambda: "was killed" in found.device(0).detail("tensorcoreUtilization"))
    assert found.device(0).reason("tensorcoreUtilization") == "timed_out"


def test_an_old_answer_of_the_sdk_is_stale(v5e: TpuRuntime, libtpu: LibtpuStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    libtpu.metric("tensorcore_util", ["1", "2", "3", "4"])
    monkeypatch.setattr(sdk, "TIMEOUT", 8.0)
    found = consumer(clock)
    assert found.device(0).values["tensorcoreUtilization"] == 1
    monkeypatch.setattr(Sdk, "want", lambda _, wait=0.0: None)  # one that does not come back
    clock.advance(28)
    assert found.device(0).values["tensorcoreUtilization"] == 1
    clock.advance(1)
    stale = found.device(0)
    assert stale.reason("tensorcoreUtilization") == "stale"
    clock.advance(5)
    assert found.device(0).detail("tensorcoreUtilization") == stale.detail("tensorcoreUtilization"), "the same header"


class Asked:
    """The SDK on a clock that a test drives, asked by hand."""

    def __init__(self, libtpu: LibtpuStandIn) -> None:
        self.clock = FakeClock()
        self.sdk = Sdk(("tensorcore_util",), self.clock)
        self._libtpu = libtpu

    def after(self, seconds: float) -> int:
        """How often it was loaded in all, so many seconds later."""
        self.clock.advance(seconds)
        self.sdk.want(HANG)
        wait_for_no_threads(SDK_THREAD)
        return len(self._libtpu.calls)


def test_the_sdk_is_asked_at_its_own_pace_and_only_while_it_is_wanted(libtpu: LibtpuStandIn) -> None:
    libtpu.metric("tensorcore_util", ["1"])
    asked = Asked(libtpu)
    assert [asked.after(seconds) for seconds in (0, INTERVAL / 2, INTERVAL / 2, 1, 100 * INTERVAL)] == [1, 1, 2, 2, 3]


def test_an_sdk_that_fails_is_asked_more_and_more_rarely(libtpu: LibtpuStandIn) -> None:
    libtpu.behave("exit")
    asked = Asked(libtpu)
    assert [asked.after(seconds) for seconds in (0, INTERVAL, INTERVAL, 3 * INTERVAL, INTERVAL)] == [1, 1, 2, 2, 3]
    libtpu.behave()
    libtpu.metric("tensorcore_util", ["1"])
    assert [asked.after(seconds) for seconds in (8 * INTERVAL, INTERVAL, INTERVAL)] == [4, 5, 6]


def test_an_sdk_that_fails_for_ever_is_asked_every_ten_minutes(libtpu: LibtpuStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdk, "ask", lambda names, clock: understood("", 1, clock.monotonic()))
    asked = Asked(libtpu)
    for _ in range(10):
        asked.after(10 * LONGEST_INTERVAL)
    assert asked.sdk._due - asked.clock.monotonic() == LONGEST_INTERVAL


def test_a_closed_driver_asks_nothing_more(v5e: TpuRuntime, libtpu: LibtpuStandIn) -> None:
    libtpu.metric("tensorcore_util", ["1", "2", "3", "4"])
    found = Consumer()
    found.driver.close()
    wait_for_no_threads(SDK_THREAD)


@pytest.mark.parametrize("printed", ["", "no JSON", "{", "[1]", '{"name": 5}', '{"other": 1}', "{" * 5000])
def test_an_sdk_that_prints_anything_else_says_nothing(printed: str) -> None:
    reading = understood(f"{printed}\n", 1, 0.0)
    assert reading.failed
    found = reading.first(("tensorcore_util",))
    assert found == (Reason.DRIVER_ERROR, "libtpu's SDK ended its process (exit status 1)")


def test_the_sdk_is_told_how_the_program_set_its_tpu_up(v5e: TpuRuntime, libtpu: LibtpuStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")
    module = libtpu.package / "sdk" / "__init__.py"
    module.write_text(
        module.read_text("utf-8") + "\nSTATE['metrics']['tensorcore_util'] = ('', [os.environ['TPU_SKIP_MDS_QUERY']] * 4)\n", "utf-8"
    )
    assert Consumer().device(0).values["tensorcoreUtilization"] == 1
