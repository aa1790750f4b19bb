"""Everything that may be wrong with the tool, seen from outside."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from accelmetrics import Sampler
from accelmetrics.backends import neuron
from accelmetrics.backends.neuron import monitor
from accelmetrics.schemas.errors import Reason, SourceError
from tests.backends.neuron.machine import PERIOD, once, quick_backend, sampler, until
from tests.simulators.neuron import NeuronMonitorStandIn, SysfsTree, hardware, report, runtime
from tests.support.pids import gone
from tests.support.waiting import HANG, wait_for

CORE = "trn.0.neuroncore_utilization"
HOST = "trn.host_total_memory_usage"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits in tenths of what they are: nothing here takes seconds that the tool does not."""
    monkeypatch.setattr(monitor, "FIRST_REPORT", 0.8)


def opening_failure() -> SourceError:
    with pytest.raises(SourceError) as caught:
        quick_backend().open()
    return caught.value


@pytest.fixture
def busy(tool: NeuronMonitorStandIn) -> NeuronMonitorStandIn:
    tool.tell(report=report([runtime(12)]))
    return tool


# Absent and half-installed


def test_absent(tree: SysfsTree) -> None:
    with Sampler(["neuron"]) as made:
        snapshot = made.sample()
    (status,) = snapshot.backends
    assert (status.status, snapshot.metrics) == ("absent", {})
    assert "neuron-monitor is neither on PATH nor in" in status.detail
    assert snapshot.unavailable == {}
    assert "sudo modprobe neuron" in opening_failure().advice


def test_the_tool_is_found_where_the_vendor_installs_it(busy: NeuronMonitorStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neuron, "DIRECTORIES", (busy.path,))
    monkeypatch.setenv("PATH", "/nothing")
    assert once().metrics[CORE] == 12.5


def test_the_vendors_directory_is_the_one_of_its_packages() -> None:
    assert neuron.DIRECTORIES == ("/opt/aws/neuron/bin",)


def test_a_tool_that_may_not_be_run(tool: NeuronMonitorStandIn) -> None:
    tool.command.chmod(0o644)
    failure = opening_failure()
    assert failure.reason == Reason.NO_PERMISSION
    assert "may not be executed" in failure.message


def test_the_tool_without_the_driver_says_so(tool: NeuronMonitorStandIn) -> None:
    """What it prints on a machine without devices: everything empty, and an error."""
    machine = hardware(error="neuron driver is not running") | {"neuron_device_count": 0, "neuroncore_per_device_count": 0}
    tool.tell(report=report(machine=machine, chips=[]))
    failure = opening_failure()
    assert (failure.reason, failure.message) == (Reason.DRIVER_UNAVAILABLE, "neuron driver is not running")


def test_cores_are_counted_in_sysfs_when_the_tool_cannot_say(tool: NeuronMonitorStandIn, tree: SysfsTree) -> None:
    tree.add_chip(0, cores=4)
    tool.tell(report=report(machine={"error": "ioctl failed"}))
    snapshot = once()
    assert len(snapshot.devices) == 4
    assert snapshot.unavailable["trn.neuron_device_count"] == (Reason.DRIVER_ERROR, "ioctl failed")


# No permission, and sections that failed


@pytest.mark.parametrize(
    ("words", "reason"), [("ioctl: permission denied", Reason.NO_PERMISSION), ("nrt: something else", Reason.DRIVER_ERROR)]
)
def test_a_sections_error_is_the_reason_of_its_values(tool: NeuronMonitorStandIn, words: str, reason: Reason) -> None:
    tool.tell(report=report([runtime(12, errors={"memory_used": words})]))
    snapshot = once()
    assert snapshot.metrics[CORE] == 12.5
    for key in (HOST, "trn.host_memory_usage.tensors", "trn.host_total_memory_usage.tensors", "trn.0.neuroncore_memory_usage.tensors"):
        assert snapshot.unavailable[key] == (reason, words)


def test_a_section_with_an_error_has_no_values_whatever_stands_in_it(tool: NeuronMonitorStandIn) -> None:
    """The tool prints zeros beside the error."""
    tool.tell(report=report([runtime(12, {0: 0.0}, errors={"neuroncore_counters": "nrt failed"})]))
    snapshot = once()
    assert snapshot.unavailable[CORE] == (Reason.DRIVER_ERROR, "nrt failed")
    assert snapshot.metrics["trn.0.neuroncore_memory_usage.constants"] == 1000


def test_one_programs_error_leaves_the_others_cores_alone_and_spoils_the_sums(tool: NeuronMonitorStandIn) -> None:
    tool.tell(report=report([runtime(11, {0: 30.0}), runtime(12, {1: 5.0}, error="runtime went away")]))
    snapshot = once()
    assert snapshot.metrics[CORE] == 30.0
    assert snapshot.unavailable["trn.1.neuroncore_utilization"] == (Reason.DRIVER_ERROR, "runtime went away")
    assert snapshot.unavailable[HOST] == (Reason.DRIVER_ERROR, "runtime went away")


def test_an_error_of_the_memory_error_counters(tool: NeuronMonitorStandIn) -> None:
    tool.tell(report=report([runtime(12)], ecc_error="sysfs: permission denied"))
    snapshot = once()
    assert snapshot.unavailable["trn.device.0.mem_ecc_corrected"] == (Reason.NO_PERMISSION, "sysfs: permission denied")


# Hangs, is slow, is silent


def test_a_tool_that_prints_nothing(tool: NeuronMonitorStandIn) -> None:
    tool.tell(mode="hang")
    failure = opening_failure()
    assert failure.reason == Reason.TIMED_OUT
    wait_for(lambda: gone(tool.starts[0]["pid"]))


def test_a_hanging_tool_holds_no_reading_up(tool: NeuronMonitorStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reading is over while the tool is waited for still."""
    monkeypatch.setattr(monitor, "FIRST_REPORT", HANG)
    tool.tell(mode="hang")
    with sampler(timeout=0.2, open_timeout=0.3) as made:
        snapshot = made.sample()
        assert snapshot.backends[0].status == "timed_out"
        (start,) = wait_for(lambda: tool.starts)
        assert not gone(start["pid"])
        tool.tell(mode="die")


def test_a_slow_start_is_waited_for(busy: NeuronMonitorStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the machine takes to start the tool."""
    monkeypatch.setattr(monitor, "FIRST_REPORT", HANG)
    busy.tell(delay=0.5)
    assert once(open_timeout=HANG, timeout=HANG).metrics[CORE] == 12.5


def test_silence_makes_readings_stale_and_then_a_new_child(busy: NeuronMonitorStandIn) -> None:
    with sampler(timeout=0.2) as made:
        until(made, lambda seen: seen.metrics.get(CORE) == 12.5)
        busy.tell(mode="hang")
        snapshot = until(made, lambda seen: CORE not in seen.metrics and seen.unavailable[CORE].reason == Reason.STALE)
        assert HOST not in snapshot.metrics
        wait_for(lambda: len(busy.starts) > 1)
        busy.tell(mode="")
        until(made, lambda seen: seen.metrics.get(CORE) == 12.5)


# Dies


def test_a_tool_that_ends_at_once_is_told_with_its_last_words(tool: NeuronMonitorStandIn) -> None:
    tool.tell(mode="die", status=3, errors="log noise\nneuron-monitor: no neuron devices\n")
    failure = opening_failure()
    assert failure.reason == Reason.DRIVER_ERROR
    assert "ended with status 3" in failure.message
    assert failure.message.endswith("neuron-monitor: no neuron devices")
    assert "neuron-ls" in failure.advice


@pytest.mark.parametrize(("mode", "words"), [("die", "ended with status 1"), ("partial", "ended with status 1"), ("crash", "signal 11")])
def test_a_tool_that_dies_is_started_again(busy: NeuronMonitorStandIn, mode: str, words: str) -> None:
    with sampler(timeout=0.2) as made:
        until(made, lambda seen: seen.metrics.get(CORE) == 12.5)
        busy.tell(mode=mode)
        snapshot = until(made, lambda seen: CORE not in seen.metrics and words in seen.unavailable[CORE].detail)
        assert snapshot.unavailable[CORE].reason == snapshot.unavailable[HOST].reason == Reason.DRIVER_ERROR
        assert snapshot.backends[0].status == "failed"
        busy.tell(mode="")
        until(made, lambda seen: seen.metrics.get(CORE) == 12.5)
        assert [device.key for device in made.sample().devices] == ["trn.0", "trn.1"]


# Garbage


def test_garbage_from_the_start(tool: NeuronMonitorStandIn) -> None:
    tool.tell(mode="malformed")
    failure = opening_failure()
    assert failure.reason == Reason.PARSE_ERROR
    assert '{"neuron_runtime_data": [' in failure.message


@pytest.mark.parametrize(
    "impossible", [-1, 4000.0, "80", None, True, 2**64 - 1, 10**400, 1e999, -(10**400), [], {}], ids=lambda value: str(value)[:8]
)
def test_impossible_values_are_missing(tool: NeuronMonitorStandIn, impossible: object) -> None:
    program = runtime(12)
    program["report"]["neuroncore_counters"]["neuroncores_in_use"]["0"]["neuroncore_utilization"] = impossible
    tool.tell(report=report([program]))
    snapshot = once()
    assert snapshot.unavailable[CORE].reason in (Reason.INVALID_VALUE, Reason.NOT_SUPPORTED)
    assert snapshot.metrics["trn.1.neuroncore_utilization"] == 80.25


def test_values_beyond_a_float_cost_themselves_and_leave_no_child(tool: NeuronMonitorStandIn) -> None:
    """From the first report on."""
    program, machine = runtime(12, {0: 12.5, 1: 10**400}), hardware() | {"neuron_device_memory_size": 10**400}
    program["report"]["memory_used"]["neuron_runtime_used_bytes"]["host"] = 10**400
    tool.tell(report=report([program], machine=machine, chips=[{"neuron_device_index": 10**400}]))
    snapshot = once()
    assert snapshot.metrics[CORE] == 12.5
    assert {snapshot.unavailable[key].reason for key in ("trn.1.neuroncore_utilization", HOST)} == {Reason.INVALID_VALUE}
    wait_for(lambda: all(gone(start["pid"]) for start in tool.starts))
    assert len(tool.starts) == 1


def test_whatever_goes_wrong_at_the_start_leaves_no_child(tool: NeuronMonitorStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect of ours included: an opening that failed is tried again and again."""

    def broken(known: set[int], line: str) -> None:
        raise OverflowError(len(line))

    monkeypatch.setattr(monitor, "parse", broken)
    for attempt in range(2):
        with pytest.raises(SourceError, match="OverflowError"):
            quick_backend().open()
        assert len(tool.starts) == attempt + 1
    wait_for(lambda: all(gone(start["pid"]) for start in tool.starts))
    wait_for(lambda: not any("neuron-monitor" in thread.name for thread in threading.enumerate()))


def test_a_little_more_than_all_of_the_time_is_all_of_it(tool: NeuronMonitorStandIn) -> None:
    tool.tell(report=report([runtime(12, {0: 100.07})]))
    assert once().metrics[CORE] == 100.0


# The child's surroundings


def test_the_configuration_is_private_and_goes_with_the_child(busy: NeuronMonitorStandIn) -> None:
    with sampler() as made:
        made.sample()
        (start,) = busy.starts
        path = Path(start["path"])
        assert start["private"]
        assert start["flags"] == ["-c", "neuron-monitor.json"]
        assert str(path.parent) == start["cwd"]
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not path.parent.exists()


def test_the_configuration_asks_for_what_is_read(busy: NeuronMonitorStandIn) -> None:
    once()
    told = busy.starts[0]["told"]
    assert told["period"] == f"{PERIOD:g}s"
    assert told["neuron_runtimes"][0]["tag_filter"] == ".*"
    metrics = {metric["type"] for metric in told["neuron_runtimes"][0]["metrics"]}
    assert metrics == {"neuroncore_counters", "memory_used", "execution_stats"}
    assert told["system_metrics"] == [{"type": "neuron_hw_counters"}]


def test_new_cores_are_listed_and_known_ones_keep_their_keys(busy: NeuronMonitorStandIn) -> None:
    with sampler() as made:
        assert len(made.sample().devices) == 2
        busy.tell(report=report([runtime(12, {0: 1.0, 2: 2.0})], machine=hardware(2, 2)))
        snapshot = until(made, lambda seen: "trn.2.neuroncore_utilization" in seen.metrics)
        assert [device.key for device in snapshot.devices] == [f"trn.{core}" for core in range(4)]


def test_in_a_reading_process(busy: NeuronMonitorStandIn) -> None:
    with Sampler(["neuron"], isolation="process", timeout=2.0) as made:
        snapshot = until(made, lambda seen: CORE in seen.metrics)
        assert snapshot.metrics[CORE] == 12.5
        pid = busy.starts[0]["pid"]
    wait_for(lambda: gone(pid))
