"""Xid errors: counted from the driver's events, beside the readings."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from accelmetrics import Sampler
from accelmetrics.backends.nvidia import NvidiaBackend, nvml, threads
from accelmetrics.exporters.scrape_cache import ScrapeCache
from accelmetrics.monitor.findings import FindingEngine
from accelmetrics.monitor.rules import rules_of
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.ring import row_of
from accelmetrics.schemas.snapshot import Snapshot, has_values
from accelmetrics.testing.fake import FakeClock
from accelmetrics.views.node_view import node_view
from tests.backends.nvidia.machine import LISTENING, Consume, Consumer, Seen, run_program
from tests.simulators.nvml import NvmlSimulator, Ret
from tests.support.threads import own_threads
from tests.support.waiting import wait_for

PAUSE = threads.PAUSE
VENDORS = Path(__file__).parents[3] / "docs" / "vendors.md"
REGISTER, CREATE, FREE = "nvmlDeviceRegisterEvents", "nvmlEventSetCreate", "nvmlEventSetFree"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look often, so that no test waits."""
    monkeypatch.setattr(threads, "PAUSE", 0.01)


def until(consumer: Consumer, unit: int, condition: Callable[[Seen], bool]) -> Seen:
    """Read once a second until it is so."""

    def read() -> Seen | None:
        seen = consumer.later(1.0, unit)
        return seen if condition(seen) else None

    seen = wait_for(read)
    assert seen is not None
    return seen


def listeners() -> int:
    return len(own_threads("accelmetrics-nvidia-xid"))


def test_errors_are_counted_by_gpu(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """From 0 on, with the newest code; there is no code before the first."""
    for unit in range(3):
        seen = consumer.read(unit)
        assert seen.metrics["xidErrors"] == 0
        assert "lastXid" not in (*seen.metrics, *seen.reasons)
    simulator.xid(1, 31)
    simulator.xid(1, 79)
    simulator.xid(2, 13)
    seen = until(consumer, 1, lambda seen: seen.metrics["xidErrors"] == 2)
    assert seen.metrics["lastXid"] == 79
    seen = until(consumer, 2, lambda seen: seen.metrics["xidErrors"] == 1)
    assert seen.metrics["lastXid"] == 13
    assert consumer.later(1.0, 0).metrics["xidErrors"] == 0


def test_calls_that_are_bound_again_keep_the_set_of_their_gpu(simulator: NvmlSimulator) -> None:
    """A consumer that wants more leaves no set behind that nothing looks into or frees."""
    first = Consumer(metrics="xidErrors")
    first.given()
    second = first.another()
    assert second.read(0).metrics["xidErrors"] == 0
    assert (simulator.count(CREATE), simulator.count(REGISTER)) == (1, 2)
    simulator.xid(0, 31)
    until(second, 0, lambda seen: seen.metrics["xidErrors"] == 1)
    first.driver.close()
    assert simulator.count(FREE) == 1


def test_errors_are_counted_by_code(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Of several between two readings none is lost, and a code is there once it has happened."""
    seen = consumer.read(0)
    assert not [name for name in (*seen.metrics, *seen.reasons) if name.startswith("xid.")]
    for code in (79, 48, 79, 94):
        simulator.xid(0, code)
    seen = until(consumer, 0, lambda seen: seen.metrics["xidErrors"] == 4)
    codes = {name: value for name, value in seen.metrics.items() if name.startswith("xid.")}
    assert codes == {"xid.79.errors": 2, "xid.48.errors": 1, "xid.94.errors": 1}
    assert seen.metrics["lastXid"] == 94


@pytest.mark.parametrize("code", [0, 1024, 2**31, 2**64 - 1])
def test_codes_that_cannot_be(simulator: NvmlSimulator, consumer: Consumer, code: int) -> None:
    """The error counts, its code does not."""
    consumer.read(0)
    simulator.xid(0, code)
    simulator.xid(0, 62)
    simulator.xid(0, code)
    seen = until(consumer, 0, lambda seen: seen.metrics["xidErrors"] == 3)
    assert seen.metrics["lastXid"] == 62
    assert [name for name in seen.metrics if name.startswith("xid.")] == ["xid.62.errors"]


def test_errors_in_an_instance_are_the_gpus(simulator: NvmlSimulator, consume: Consume) -> None:
    """Counted once, where sums are right."""
    instance = simulator.partition(1, ["1g.10gb"])[0]
    consumer = consume()
    consumer.read(1)
    simulator.xid(1, 43, instance)
    until(consumer, 1, lambda seen: seen.metrics["xidErrors"] == 1)
    assert "xidErrors" not in consumer.read(3).metrics


def test_other_events_are_not_counted(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Nor asked for."""
    consumer.read(0)
    simulator.event(0, 0x10)
    simulator.xid(0, 62)
    assert until(consumer, 0, lambda seen: "lastXid" in seen.metrics).metrics["xidErrors"] == 1


def test_what_happened_before_is_not_counted(simulator: NvmlSimulator, consume: Consume) -> None:
    """The counter begins when the program begins to listen."""
    simulator.xid(0, 48)
    consumer = consume()
    consumer.read(0)
    simulator.xid(0, 95)
    assert until(consumer, 0, lambda seen: "lastXid" in seen.metrics).metrics["xidErrors"] == 1


def test_consumers_share_the_counter(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Two of them do not take each other's events, and a GPU is registered once."""
    consumer.read(0)
    other = consumer.another()
    other.read(0)
    simulator.xid(0, 94)
    until(consumer, 0, lambda seen: seen.metrics["xidErrors"] == 1)
    assert other.read(0).metrics["xidErrors"] == 1
    assert simulator.calls()[(REGISTER, 0)] == 1
    assert listeners() == 1


def test_two_drivers_count_each_for_itself(simulator: NvmlSimulator, consume: Consume) -> None:
    """Each has a set of its own."""
    first, second = consume(), consume()
    first.read(0)
    second.read(0)
    simulator.xid(0, 63)
    for consumer in (first, second):
        until(consumer, 0, lambda seen: seen.metrics["xidErrors"] == 1)


@pytest.mark.parametrize("code", [Ret.NOT_SUPPORTED, Ret.NO_PERMISSION, Ret.UNKNOWN], ids=str)
def test_a_gpu_that_cannot_be_registered(simulator: NvmlSimulator, consumer: Consumer, code: Ret) -> None:
    """A reason, never a zero; asked again unless the answer is final; the others are counted."""
    simulator.rule(REGISTER, 0, error=code)
    reasons: dict[int, str] = {Ret.NOT_SUPPORTED: "not_supported", Ret.NO_PERMISSION: "no_permission"}
    assert consumer.read(0).reason("xidErrors") == reasons.get(code, "driver_error")
    assert consumer.read(1).metrics["xidErrors"] == 0
    simulator.clear_rules()
    seen = consumer.later(0.2)
    assert ("xidErrors" in seen.metrics) == (code != Ret.NOT_SUPPORTED)


def test_a_gpu_that_cannot_be_registered_for_long_is_not_asked_at_every_reading(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """At the next one, and then once a second."""
    simulator.rule(REGISTER, 0, error=Ret.NO_PERMISSION)
    consumer.read(0)
    for _ in range(30):
        assert consumer.later(0.1).reason("xidErrors") == "no_permission"
    assert simulator.count(REGISTER) <= 2 + 3
    simulator.clear_rules()
    assert consumer.later(1.0).metrics["xidErrors"] == 0


def test_a_set_that_cannot_be_made(simulator: NvmlSimulator, consume: Consume) -> None:
    """A reason until the driver is opened again."""
    simulator.rule(CREATE, error=Ret.MEMORY, times=1)
    consumer = consume()
    assert consumer.read(0).reason("xidErrors") == "driver_error"
    assert simulator.count(REGISTER) == 0
    consumer.driver.close()
    assert consume().read(0).metrics["xidErrors"] == 0


def test_while_looking_fails_there_is_no_number(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """An error may have been missed then; the count goes on afterwards."""
    consumer.read(0)
    simulator.xid(0, 64)
    until(consumer, 0, lambda seen: seen.metrics.get("xidErrors") == 1)
    simulator.rule(LISTENING, error=Ret.UNKNOWN)
    assert until(consumer, 0, lambda seen: "xidErrors" in seen.reasons).reason("xidErrors") == "driver_error"
    simulator.clear_rules()
    assert until(consumer, 0, lambda seen: "xidErrors" in seen.metrics).metrics["lastXid"] == 64


def test_a_driver_that_goes_ends_the_thread(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """There is nothing more to listen to until it is opened again."""
    consumer.read(0)
    simulator.driver_away()
    wait_for(lambda: listeners() == 0)


def test_closing_ends_the_thread_and_frees_the_set(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Nothing is left behind, and a second close does no harm."""
    consumer.read(0)
    assert listeners() == 1
    consumer.driver.close()
    assert listeners() == 0
    assert simulator.count(FREE) == simulator.count(CREATE) == 1


def test_a_driver_that_was_never_read_has_no_thread(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """The counter was not asked for."""
    assert listeners() == 0
    assert simulator.count(LISTENING) == 0


def test_a_call_that_hangs_costs_the_counter_alone(simulator: NvmlSimulator, consume: Consume, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readings go on, and closing does not wait: the library is left to the call that is in it."""
    monkeypatch.setattr(threads, "PATIENCE", 0.05)
    consumer = consume()
    simulator.rule(LISTENING, hang=True)
    consumer.read(0)
    simulator.wait_for(LISTENING)
    assert consumer.later(1.0).metrics["temp"] == simulator.gpu[0].get("temperature")
    simulator.reset_calls()
    consumer.driver.close()
    assert (simulator.count(FREE), simulator.count("nvmlShutdown")) == (0, 0)
    simulator.clear_rules()


def test_the_thread_sleeps(simulator: NvmlSimulator, consume: Consume, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between any two looks, of which each is a few milliseconds long."""
    pauses: list[float | None] = []

    class NotedEvent(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            if threading.current_thread().name == "accelmetrics-nvidia-xid":
                pauses.append(timeout)
            return super().wait(timeout)

    with monkeypatch.context() as patch:
        patch.setattr(threading, "Event", NotedEvent)
        consumer = consume()
    consumer.read(0)
    wait_for(lambda: simulator.count(LISTENING) >= 3)
    consumer.driver.close()
    assert set(pauses) == {threads.PAUSE}
    assert len(pauses) >= simulator.count(LISTENING) - 1
    assert threads.WAIT_MS <= 20


def test_how_often_it_looks_is_what_the_words_say() -> None:
    """In the module, and in what users read."""
    words = f"looks every {PAUSE:g} s"
    assert words in str(threads.__doc__)
    assert words in VENDORS.read_text(encoding="utf-8")


# In programs of their own


def test_exit_does_not_wait_for_the_thread(simulator: NvmlSimulator) -> None:
    """Not even for a look that hangs."""
    simulator.rule(LISTENING, hang=True)
    status, output = run_program(
        simulator,
        """
        import accelmetrics, threading
        print(accelmetrics.sample(["nvidia"]).metrics["gpu.1.xidErrors"])
        assert any(thread.name == "accelmetrics-nvidia-xid" for thread in threading.enumerate())
        """,
    )
    assert (status, output) == (0, "0\n")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="platform: no fork")
def test_children_of_a_fork_listen_for_themselves(simulator: NvmlSimulator) -> None:
    """Whatever the thread was doing: no fork meets it inside the driver."""
    status, output = run_program(
        simulator,
        """
        import os, accelmetrics
        from accelmetrics.backends.nvidia import nvml, threads
        threads.PAUSE = 0.0
        accelmetrics.sample(["nvidia"])
        def child():
            snapshot = accelmetrics.sample(["nvidia"])
            return 0 if snapshot.metrics["gpu.0.xidErrors"] == 0 and not nvml._held else 1
        for _ in range(10):
            pid = os.fork()
            if pid == 0:
                os._exit(child())
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert not nvml._held
        print("done")
        """,
    )
    assert (status, output) == (0, "done\n")


def test_a_fork_waits_for_the_call_in_progress(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """And not for ever for one that hangs."""
    consumer.read(0)
    nvml._before_fork()
    try:
        simulator.reset_calls()
        for _ in range(100):
            consumer.later(1.0)
        assert simulator.count(LISTENING) == 0, "the thread is kept out of the driver"
    finally:
        nvml._after_fork()
    simulator.wait_for(LISTENING)
    simulator.rule(LISTENING, hang=True)
    simulator.reset_calls()
    simulator.wait_for(LISTENING)
    nvml._before_fork()  # returns though the call does not
    nvml._after_fork()
    simulator.clear_rules()


def test_the_xid_of_a_lost_gpu_is_counted_while_it_is_lost(simulator: NvmlSimulator) -> None:
    """Without asking the GPU; everything else of it has the reason, and the other GPUs count on."""
    with Sampler([NvidiaBackend()]) as sampler:
        owed = sampler.sample().metrics.keys()
        simulator.lose(1)
        simulator.xid(1, 79)
        simulator.xid(0, 31)
        wait_for(lambda: {"gpu.0.lastXid", "gpu.1.lastXid"} <= sampler.sample().metrics.keys())
        snapshot = sampler.sample()
        told = {key: value for key, value in snapshot.metrics.items() if key.startswith("gpu.1.")}
        assert told == {"gpu.1.xidErrors": 1, "gpu.1.lastXid": 79, "gpu.1.xid.79.errors": 1}
        missing = {key: why.reason for key, why in snapshot.unavailable.items() if key.startswith("gpu.1.")}
        assert set(missing.values()) == {"device_lost"}
        assert {key for key in owed if key.startswith("gpu.1.")} <= missing.keys() | told.keys()
        assert snapshot.metrics["gpu.2.xidErrors"] == 0
        assert [status.status for status in snapshot.backends] == ["degraded"]
        assert not has_values(snapshot, "gpu.1")
        assert type(snapshot).from_json(snapshot.to_json()) == snapshot
        simulator.recover(1)
        wait_for(lambda: "gpu.1.temp" in sampler.sample().metrics)
        assert sampler.sample().metrics["gpu.1.xidErrors"] == 1


def test_xids_that_are_not_wanted_of_a_lost_gpu_are_not_given(simulator: NvmlSimulator) -> None:
    with Sampler([NvidiaBackend()], metrics="temp") as sampler:
        sampler.sample()
        simulator.lose(1)
        simulator.xid(1, 79)
        assert [key for key in sampler.sample().metrics if key.startswith("gpu.1.")] == []


def test_a_lost_gpu_has_a_finding_and_series_of_its_xid_at_once(simulator: NvmlSimulator) -> None:
    """Found and scraped while the GPU is lost, and shown on the screen; the GPU is found to be lost all the same."""
    clock = FakeClock()
    engine = FindingEngine(rules_of(["xid_hardware", "device_lost"]), 1.0, {})
    with Sampler([NvidiaBackend()]) as sampler:
        snapshots: list[Snapshot] = []

        def judged() -> list[tuple[str, str]]:
            clock.advance(1.0)
            snapshot = sampler.sample()
            row = row_of(snapshot, clock.monotonic())
            snapshots.append(snapshot)
            found = engine.judge(snapshot, row, (), True)
            return sorted((finding.rule, finding.key) for finding in found)

        assert judged() == []
        simulator.lose(1)
        simulator.xid(1, 79)
        wait_for(lambda: judged() == [("device_lost", "gpu.1"), ("xid_hardware", "gpu.1")])
    record = Record(snapshots[-1], findings=engine.findings)
    cache = ScrapeCache("prometheus", max_age=60)
    cache.take(record)
    series = [line for line in cache.metrics().decode().splitlines() if 'accelerator="gpu.1"' in line]
    assert any(line.startswith("accel_xid_code_errors_total{") and 'code="79"' in line and line.endswith(" 1.0") for line in series)
    assert any(line.startswith("accel_up{") and line.endswith(" 0.0") for line in series)
    shown = next(device for device in node_view(record).devices if device.key == "gpu.1")
    assert shown.state == "bad"
    assert shown.notes[0].startswith("lost")
    assert "Xid 79: the GPU has fallen off the bus" in shown.notes
